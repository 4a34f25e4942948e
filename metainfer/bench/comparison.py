"""What the turns of one run say about each other: ratios, agreement of tokens, and reasons to doubt the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from metainfer.bench.environment import Environment
from metainfer.bench.figures import Turn
from metainfer.bench.metrics import Spread, Timeline
from metainfer.bench.prompts import PromptMaker
from metainfer.bench.report import Agreement, Ratio, SubjectReport
from metainfer.bench.subject import Subject

RATIO_FIGURES = ("decode_tokens_per_s", "prefill_tokens_per_s")
_NOISE_LIMIT = 0.10
_MERGED_LIMIT = 0.10


@dataclass
class Contestant:
    """A started subject and what it has done so far. The first of a run's contestants is the engine."""

    subject: Subject
    start_s: float
    expected_s: float
    """Length of a turn as its warm-up suggests."""
    turns: list[Turn] = field(default_factory=list)


def ratios(contestants: Sequence[Contestant], reports: Sequence[SubjectReport]) -> tuple[Ratio, ...]:
    """Engine over peer for each of `RATIO_FIGURES`, paired within repeats."""
    ours, *theirs = (report.figures for report in reports)
    return tuple(
        Ratio(
            figure=figure,
            peer=contestant.subject.name,
            ratio=Spread.of([a / b for a, b in zip(ours[figure].values, peer[figure].values, strict=True)]),
        )
        for contestant, peer in zip(contestants[1:], theirs, strict=True)
        for figure in RATIO_FIGURES
        if figure in ours and figure in peer
    )


def agreements(
    contestants: Sequence[Contestant], prompts: PromptMaker
) -> tuple[tuple[Agreement, ...], tuple[str, ...]]:
    """How far each peer's greedy tokens agree with the engine's, and the peers for which that cannot be told."""
    engine, *peers = contestants
    known, silent = [], []
    for peer in peers:
        pairs = zip(engine.turns, peer.turns, strict=True)
        prefixes = [_agreeing(prompts, ours.decode, theirs.decode) for ours, theirs in pairs]
        told = tuple(prefix for prefix in prefixes if prefix is not None)
        if len(told) < len(prefixes):
            silent.append(peer.subject.name)
            continue
        tokens = peer.turns[0].decode.output_tokens
        known.append(Agreement(peer=peer.subject.name, tokens=tokens, prefixes=told))
    return tuple(known), tuple(silent)


def _agreeing(prompts: PromptMaker, ours: Timeline, theirs: Timeline) -> int | None:
    """Tokens from the first on that both chose; None if that cannot be told."""
    if theirs.token_ids is None:
        return None
    if ours.token_ids is None:
        return prompts.agreeing_prefix(theirs.token_ids, ours.text or "")
    pairs = zip(ours.token_ids, theirs.token_ids, strict=False)
    shorter = min(len(ours.token_ids), len(theirs.token_ids))
    return next((place for place, (our, their) in enumerate(pairs) if our != their), shorter)


def doubts(contestants: Sequence[Contestant], reports: Sequence[SubjectReport], environment: Environment) -> list[str]:
    """What a careful reader would ask about the figures themselves."""
    found = []
    if environment.load_average[0] > environment.usable_cores / 2:
        found.append(f"the load average was {environment.load_average[0]:.1f} when the run began")
    for contestant, report in zip(contestants, reports, strict=True):
        name = report.info.name
        rate = report.figures.get("decode_tokens_per_s")
        if rate and rate.noise > _NOISE_LIMIT:
            found.append(f"{name}: decode varied by ± {rate.noise:.0%} between repeats")
        if "decode_mbu" in report.figures and report.figures["decode_mbu"].max > 1:
            found.append(f"{name}: MBU above 1: the weights fit a cache, or the ceiling was read in a slow moment")
        if report.figures.get("decode_cores", Spread.of([0.0])).max > report.info.threads + 0.2:
            found.append(f"{name}: used more cores than its {report.info.threads} threads")
        merged = sum(turn.decode.merged_tokens for turn in contestant.turns)
        tokens = sum(turn.decode.output_tokens for turn in contestant.turns)
        if merged > _MERGED_LIMIT * tokens:
            found.append(
                f"{name}: {merged} of {tokens} tokens arrived together with another: TPOT may read low, ITL high"
            )
        if report.memory is None:
            found.append(f"{name}: its memory could not be read")
    return found
