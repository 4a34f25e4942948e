"""The dashboard's text. Everything that comes from the repository is escaped; the newest trouble stands first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from metainfer.forge.markdown import code, inline, table
from metainfer.review.dashboard.facts import EngineFacts, Facts, ReviewFacts, RunFacts

TITLE = "metainfer dashboard"
MARKER = "<!-- metainfer-dashboard -->"
FRESH_FOR = timedelta(hours=6)
"""It is kept every hour, though GitHub may be late with that; after this long it was not."""
MAX_CHARACTERS = 60_000
_MAX_ROWS = 150
_STAMP = "%Y-%m-%d %H:%M UTC"
UPDATED = "*Updated "
_BAD = ("failure", "timed_out", "startup_failure", "action_required")


def render(facts: Facts, now: datetime) -> str:
    """The issue's body, with the marker last and the time on a line that begins with UPDATED."""
    parts = [
        _trouble(facts),
        _stamp(now),
        _engines(facts.engines),
        _reviews(facts.reviews),
        _runs(facts.runs),
        _money(facts.engines),
        "Close this issue as *not planned* to be rid of it; opened again, it is kept again.",
    ]
    body = "\n\n".join(part for part in parts if part)
    if len(body) > MAX_CHARACTERS:
        body = body[: body.rfind("\n", 0, MAX_CHARACTERS)] + "\n\n*… left out for length.*"
    return f"{body.replace(MARKER, '')}\n\n{MARKER}\n"


def says_the_same(one: str, other: str) -> bool:
    """Whether two bodies differ in their time alone."""
    return _without_time(one) == _without_time(other)


def _without_time(body: str) -> list[str]:
    return [line.rstrip() for line in body.splitlines() if not line.startswith(UPDATED)]


def _stamp(now: datetime) -> str:
    due = now + FRESH_FOR
    return (
        f"{UPDATED}{now.astimezone(UTC).strftime(_STAMP)}.* Kept current by the workflows. "
        f"**If it is later than {due.astimezone(UTC).strftime(_STAMP)}, nothing keeps it current any more: "
        "what follows may no longer be so.** Look at the Actions tab."
    )


def _trouble(facts: Facts) -> str:
    lines = []
    if facts.outcome and facts.outcome != "success":
        where = f" ([log]({facts.run_url}))" if _is_link(facts.run_url) else ""
        lines.append(f"The run that wrote this ended with **{inline(facts.outcome, 30)}**{where}.")
    for run in facts.runs:
        if run.outcome in _BAD:
            since = f"it last succeeded {_day(run.succeeded)}" if run.succeeded else "no success of it is known"
            lines.append(f"{code(run.workflow)} failed {_day(run.last)}; {since}.")
    waiting = [review for review in facts.reviews if review.state != "success"]
    weak = [review for review in waiting if review.weakened]
    if weak:
        lines.append(f"{_numbers(weak)} would **weaken knowledge**; an owner has to look.")
    if not lines:
        return ""
    return "\n".join(["> [!WARNING]", *(f"> - {line}" for line in lines)])


def _engines(engines: Sequence[EngineFacts]) -> str:
    if not engines:
        return "### Engines\n\nNone, and no spec. `metainfer init` brings an example."
    rows = []
    for engine in engines[:_MAX_ROWS]:
        verdict = {"green": "green", "red": "**red**", "": "not made yet"}.get(
            engine.verdict, inline(engine.verdict, 40)
        )
        if engine.verdict and not engine.spec:
            verdict += ", its spec is gone"
        waiting = f"#{engine.pull}, {inline(engine.pull_verdict, 40)}" if engine.pull else ""
        rows.append(
            [
                code(engine.name),
                code(engine.release),
                verdict,
                inline(engine.judged[:10]),
                str(engine.lines or ""),
                engine.speed,
                waiting,
            ]
        )
    columns = ["engine", "release", "verdict", "judged", "lines", "decoding", "waits in"]
    return "\n".join(["### Engines", "", *table(columns, rows), *_more(engines)])


def _reviews(reviews: Sequence[ReviewFacts]) -> str:
    waiting = [review for review in reviews if review.state != "success"]
    if not waiting:
        return "### Knowledge to review\n\nNone."
    lines = [
        f"- #{review.number} {inline(review.title, 120)}: {inline(review.words, 160)}"
        + (" — **weakens knowledge**" if review.weakened else "")
        for review in waiting[:_MAX_ROWS]
    ]
    return "\n".join(["### Knowledge to review", "", *lines, *_more(waiting)])


def _runs(runs: Sequence[RunFacts]) -> str:
    rows = []
    for run in runs:
        if run.unread:
            rows.append([code(run.workflow), "cannot be read with this token", ""])
            continue
        outcome = f"**{inline(run.outcome, 30)}**" if run.outcome in _BAD else inline(run.outcome, 30)
        last = f"[{_day(run.last)}]({run.url}), {outcome}" if _is_link(run.url) else "never"
        rows.append([code(run.workflow), last, _day(run.succeeded) if run.succeeded else "never, as far as is known"])
    return "\n".join(["### Runs", "", *table(["workflow", "last run", "last success"], rows)])


def _money(engines: Sequence[EngineFacts]) -> str:
    rows = [
        [code(one.name), inline(one.model), _usd(one.spent_usd), _usd(one.pull_spent_usd), _usd(one.budget_usd)]
        for one in engines
        if one.spent_usd or one.pull_spent_usd or one.budget_usd or one.model
    ]
    if not rows:
        return "### Money\n\nNo language model was paid for these engines."
    total = sum(one.spent_usd + one.pull_spent_usd for one in engines)
    columns = ["engine", "model", "merged engine", "proposed engine", "budget of one run"]
    note = (
        f"Together {_usd(total)}, for the engines that are here. What runs spent that came to nothing is in their logs."
    )
    return "\n".join(["### Money", "", *table(columns, rows[:_MAX_ROWS]), "", note])


def _numbers(reviews: Sequence[ReviewFacts]) -> str:
    return ", ".join(f"#{review.number}" for review in reviews[:10])


def _more(items: Sequence[object]) -> list[str]:
    return [f"\n*… and {len(items) - _MAX_ROWS} more.*"] if len(items) > _MAX_ROWS else []


def _usd(value: float) -> str:
    return f"{value:.2f} USD" if value else "0"


def _day(stamp: str) -> str:
    """A time of GitHub's to the minute."""
    return inline(stamp[:16].replace("T", " ")) if stamp else "at an unknown time"


def _is_link(url: str) -> bool:
    return url.startswith(("https://", "http://localhost", "http://127.0.0.1")) and not set(url) & set("()<> \"'\n|")
