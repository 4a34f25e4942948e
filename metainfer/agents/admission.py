"""What may be asked with a run's key: the questions that its spec's roles ask, in their form and with its settings.

The text between is whatever a model and a judge have said; it is bounded, and paid for from the spec's budget. Nothing
in a question chooses a model, an endpoint, a length or a tool that the spec does not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from metainfer.agents.answer import WRITE_FILE
from metainfer.agents.consolidator import LessonsAnswer
from metainfer.agents.messages import Message
from metainfer.agents.planner import PlanAnswer
from metainfer.agents.requests import PendingRequest, RequestsError
from metainfer.agents.reviewer import ReviewAnswer
from metainfer.agents.structured import AnswerModel
from metainfer.agents.templates import render
from metainfer.spec.models import Generation

IMPLEMENTER = "implementer"
_ANSWERS: dict[str, type[AnswerModel]] = {
    "planner": PlanAnswer,
    "reviewer": ReviewAnswer,
    "consolidator": LessonsAnswer,
}
_SHAPES = (("system", "user"), ("system", "user", "assistant", "user"))


@dataclass(frozen=True)
class Terms:
    """What the base says about a run."""

    engine: str
    generation: Generation
    contracts: Collection[str]
    """Ids of all that the knowledge base holds."""

    @property
    def most_questions(self) -> int:
        """More than any run of this spec asks."""
        writers = len(self.generation.contracts or self.contracts)
        # First answer, repairs, fresh samples, one repair after a review; two reviews and lessons, each asked twice.
        each = 1 + self.generation.rounds + self.generation.samples + 1 + 4 + 2
        return writers * each + 4

    @property
    def most_calls(self) -> int:
        """Of all rounds together, when every question takes as many attempts as the client makes."""
        return self.most_questions * 5

    def require(self, pending: Sequence[PendingRequest]) -> None:
        """Raise RequestsError if any question is not one of this spec's."""
        if len(pending) > self.most_questions:
            raise RequestsError(f"{len(pending)} questions; a run of {self.engine} has at most {self.most_questions}")
        for number, one in enumerate(pending, start=1):
            if complaint := self.complaint(one):
                raise RequestsError(f"question {number} ({one.digest[:12]}): {complaint}; nothing was asked")

    def complaint(self, one: PendingRequest) -> str:
        """Why a question may not be asked; empty if it may."""
        generation, request, role = self.generation, one.request, one.purpose.role
        if role != IMPLEMENTER and role not in generation.roles:
            return f"no role of this spec is called {ascii(role)[:40]}"
        fixed = (
            ("model", request.model == generation.model),
            ("max_tokens", request.max_tokens == generation.max_tokens),
            ("subject", self._is_subject(role, one.purpose.subject)),
            ("messages", tuple(message.role for message in request.messages) in _SHAPES),
            ("system prompt", _is_ours(role, request.messages[0])),
        )
        own = self._of_implementer(one) if role == IMPLEMENTER else _of_adviser(one)
        wrong = [name for name, holds in (*fixed, *own) if not holds]
        return f"its {', '.join(wrong)} is not what the spec says" if wrong else ""

    def _is_subject(self, role: str, subject: str) -> bool:
        if role == "planner":
            return subject == self.engine
        return subject in self.contracts and (not self.generation.contracts or subject in self.generation.contracts)

    def _of_implementer(self, one: PendingRequest) -> list[tuple[str, bool]]:
        generation, request = self.generation, one.request
        temperature = generation.temperature if request.sample else 0.0
        return [
            ("round", 0 <= one.purpose.round <= generation.rounds + 1),
            ("sample", 0 <= request.sample <= generation.samples),
            ("seed", request.seed == request.sample),
            ("temperature", request.temperature == temperature),
            ("tools", request.tools in ((), (WRITE_FILE,) if generation.tools else ())),
            ("answer_schema", request.answer_schema is None),
        ]


def _of_adviser(one: PendingRequest) -> list[tuple[str, bool]]:
    role, request = one.purpose.role, one.request
    return [
        ("round", 0 <= one.purpose.round <= (3 if role == "reviewer" else 1)),
        ("sample", request.sample == 0),
        ("seed", request.seed == 0),
        ("temperature", request.temperature == 0.0),
        ("tools", request.tools == ()),
        ("answer_schema", request.answer_schema == _ANSWERS[role].model_json_schema()),
    ]


def _is_ours(role: str, message: Message) -> bool:
    """Whether a system prompt is that of the role: none of them depends on a spec."""
    return message.content == render(f"{role}.system.md.j2")
