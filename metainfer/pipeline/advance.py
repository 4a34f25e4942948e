"""One round of a run that no process holds whole: goes as far as the replies reach, with no key and no model in reach.

A run is a function of the spec, the knowledge and the model's replies. So a round makes it again from its beginning:
what has a reply costs nothing, what was judged is remembered, and what is asked beyond is written down for
`metainfer.agents.answering`. The round that finds a reply to everything ends as `metainfer run` does, short of a forge.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from metainfer.agents.correspondence import Correspondence, RunId
from metainfer.agents.pausing import PausedError
from metainfer.agents.recorded import Recorded
from metainfer.agents.requests import write_requests
from metainfer.errors import InputError, RefusedError
from metainfer.files import pretty_json, write_atomic
from metainfer.generate.manifest import EVIDENCE_NAME
from metainfer.pipeline.agents import ENDPOINT_NAME
from metainfer.pipeline.proposed import PROPOSAL_NAME, read_proposals
from metainfer.pipeline.record import RunLog
from metainfer.pipeline.run import RunRequest
from metainfer.pipeline.stages import Stages

if TYPE_CHECKING:
    from metainfer.gates.report import GateReport
    from metainfer.generate.specializer import GeneratedEngine
    from metainfer.pipeline.prepare import Prepared
    from metainfer.progress import Progress

State = Literal["pending", "done", "red"]
REQUESTS_NAME = "requests.jsonl"
RUNS, BUNDLE = "runs", "bundle"
_VERDICTS, _WORK = "verdicts", "work"


@dataclass(frozen=True)
class RoundPlan:
    """What to go on with, and where."""

    base: str
    """The commit that spec and knowledge are of."""
    repo_root: Path
    cache: Path
    replies: Path
    """The run's `Correspondence`, read only."""
    out: Path
    """Of this round; what an earlier one left there of its verdicts is used, all else replaced."""
    final: bool = False
    """There will be no further round: what has no reply falls back, as the spec says."""
    seed: int = 0


@dataclass(frozen=True)
class Advanced:
    """How far it went."""

    state: State
    input_hash: str
    message: str
    pending: int = 0
    """Questions in `requests.jsonl`."""
    run_folder: Path | None = None
    """With transcript, outcomes and the engine, for `metainfer replay`; None while pending."""
    engine: GeneratedEngine | None = None
    """The one that passed every gate."""
    gates: Sequence[GateReport] = ()
    proposals: Sequence[Path] = ()
    """Knowledge that the model proposes beside it."""


def advance(prepared: Prepared, plan: RoundPlan, progress: Progress) -> Advanced:
    """Go as far as the replies reach.

    `prepared`: with what a model is asked among its inputs. Raises RefusedError for a run that replies do not decide,
    NotWrittenError where units are missing and nothing may take their place, and what the gates raise.
    """
    require_rounds(prepared)
    run, correspondence = RunId.of(prepared.spec), Correspondence(plan.replies)
    correspondence.require(run)
    _clear(plan.out)
    recorded = Recorded(correspondence, plan.out / _VERDICTS, final=plan.final)
    request = RunRequest(
        spec_path=prepared.spec_path,
        repo_root=plan.repo_root,
        state=plan.out / _WORK,
        cache=plan.cache,
        bench=False,
        seed=plan.seed,
        recorded=recorded,
    )
    inputs = prepared.inputs
    log = RunLog.begin(
        plan.out, engine=inputs.name, spec=inputs.spec_path, input_hash=inputs.input_hash, base=plan.base
    )
    stages = Stages(request, prepared, log, progress)
    try:
        judged = stages.all()
    except PausedError:
        pending = recorded.pending
        write_requests(plan.out / REQUESTS_NAME, run, pending)
        log.end("unchanged", "the run waits for replies")
        shutil.rmtree(log.folder)
        roles = ", ".join(dict.fromkeys(one.purpose.role for one in pending))
        return Advanced("pending", inputs.input_hash, f"{len(pending)} questions of {roles}", len(pending))
    finally:
        shutil.rmtree(request.state, ignore_errors=True)
    write_atomic(stages.engine_dir / EVIDENCE_NAME, stages.evidence(judged).encode())
    write_atomic(log.folder / ENDPOINT_NAME, pretty_json(correspondence.found_endpoint()))
    if judged.red:
        message = f"red at {judged.red[0].gate}; the candidate and its reports are kept"
        log.end("red", message)
        return Advanced("red", inputs.input_hash, message, run_folder=log.folder, gates=judged.gates)
    message = "every gate is green; nothing was proposed yet"
    log.end("made", message)
    return Advanced(
        "done",
        inputs.input_hash,
        message,
        run_folder=log.folder,
        engine=judged.candidate.engine,
        gates=judged.gates,
        proposals=_own_proposals(log.folder, inputs.ckb_root, progress),
    )


def require_rounds(prepared: Prepared) -> None:
    """RefusedError for a run that replies alone do not decide, InputError where no model writes."""
    generation = prepared.spec.generation
    if generation.optimise:
        raise RefusedError(
            "generation.optimise: what is faster is measured, so replies alone do not decide the engine; set it to "
            "false here, or run `metainfer run --optimise` on one machine"
        )
    if generation.backend != "agents" or prepared.inputs.agent is None:
        raise InputError("no model writes units of this engine; `metainfer ci generate` makes it without one")


def _clear(out: Path) -> None:
    """Leave the verdicts of an earlier round and nothing else."""
    out.mkdir(parents=True, exist_ok=True)
    known = {REQUESTS_NAME, RUNS, BUNDLE, _VERDICTS, _WORK}
    if strange := sorted(path.name for path in out.iterdir() if path.name not in known):
        raise InputError(
            f"{out}: holds {ascii(strange[0])[:80]}, which no round leaves; name another folder with --out"
        )
    for name in known - {_VERDICTS}:
        path = out / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _own_proposals(run_folder: Path, ckb_root: Path, progress: Progress) -> list[Path]:
    """What the run proposes to know, where the base takes it."""
    from metainfer.errors import MetainferError

    own = run_folder / PROPOSAL_NAME
    if not own.exists():
        return []
    try:
        read_proposals([own], ckb_root)
    except MetainferError as error:
        progress.note(f"what the model proposes to know is left in {own}: {error}")
        return []
    return [own]
