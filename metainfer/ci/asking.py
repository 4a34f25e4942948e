"""The job that holds the model's key: it sends what another job wrote down, and runs nothing that was generated.

It imports neither sandbox nor gates, and believes nothing in the questions: the model, its settings and its budget are
those of the base's spec.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.agents.admission import Terms
from metainfer.agents.answering import Answered, Line, answer_all, require_mark
from metainfer.agents.correspondence import Correspondence, RunId
from metainfer.agents.requests import read_requests
from metainfer.ckb.store import KnowledgeBase
from metainfer.errors import RefusedError

if TYPE_CHECKING:
    from metainfer.ci.deployment import Deployment


def ask_round(
    deployment: Deployment,
    requests: Path,
    replies: Path,
    line: Line,
    *,
    ledger_mark: str | None = None,
    most_usd: float | None = None,
) -> Answered:
    """Get replies for the questions in `requests` into the run's folder `replies`.

    Raises RequestsError if any question is not one of the spec's, or if the folder's ledger does not begin with what
    `ledger_mark` was taken of, and RefusedError for a spec that may spend more than `most_usd`; nothing was asked then.
    Else raises what `answer_all` does.
    """
    spec = deployment.spec
    if most_usd is not None and spec.generation.budget_usd > most_usd:
        raise RefusedError(
            f"{deployment.spec_path}: generation.budget_usd is {spec.generation.budget_usd:g}, and {most_usd:g} is the "
            "most that a spec may spend here; lower it, or have whoever keeps the key raise METAINFER_MOST_USD"
        )
    run = RunId.of(spec)
    terms = Terms(spec.name, spec.generation, set(KnowledgeBase.load(deployment.ckb_root).contracts))
    pending = read_requests(requests, run)
    terms.require(pending)
    folder = Correspondence(replies)
    if ledger_mark is not None:
        require_mark(folder, ledger_mark)
    folder.begin(run)
    return answer_all(pending, folder, spec.generation, line.bounded(terms.most_calls))
