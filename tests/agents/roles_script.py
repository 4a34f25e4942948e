"""What a model says in a whole run: a norm that is repaired, an MLP that is objected to, and positions it cannot do."""

from __future__ import annotations

from tests.agents.handwritten import RMSNORM, RMSNORM_WITHOUT_EPS, SWIGLU, fenced
from tests.agents.roles_at_work import Body, by_role, mistakes, objection, objections, plan, said

NORM, MLP, ROPE = "family/rmsnorm", "family/swiglu-mlp", "family/rope"
SWIGLU_LINE = next(n for n, line in enumerate(SWIGLU.strip().split("\n"), 1) if "sigmoid" in line)
WHY = "Ask @maintainers | see #1 <img src=x onerror=y> `overflow` for gate = -1e4."
MISTAKE = {
    "finding": "F1",
    "trigger": "The reciprocal root is taken of the bare power, as if no row were all zeros. @owner",
    "symptom": "A row of padding turns the whole batch into NaN.",
    "fix": "Keep the guard beside the power in every place where it is used.",
}


def implementer(body: Body) -> str:
    task = body["messages"][1]["content"]
    if "Write RMSNorm" not in task:
        return fenced(SWIGLU) if "Write SwiGLU" in task else "I cannot do that."
    return fenced(RMSNORM if "<findings>" in body["messages"][-1]["content"] else RMSNORM_WITHOUT_EPS)


def reviewer(body: Body) -> str:
    if "torch.sigmoid" not in said(body):
        return objections(objection("S77", 3, "no such line"))
    return objections(objection("S1", SWIGLU_LINE, "torch.sigmoid(gate)", WHY))


SCRIPT = by_role(
    planner=lambda body: plan((MLP, 5, 0, False), (NORM, 1, 0, True), (ROPE, 0, 0, False), why="The small one first."),
    implementer=implementer,
    reviewer=reviewer,
    consolidator=lambda body: mistakes(MISTAKE, MISTAKE | {"fix": "Widen the tolerance."}),
)
