"""What an implementer is told: contract, interfaces around it, deployment, and a reference if the spec allows one.

Checks, gates and other units' bodies are not in it, and nothing here could reach them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metainfer.agents.messages import Message
from metainfer.agents.templates import render

if TYPE_CHECKING:
    from metainfer.ckb.models import Contract, UnitInterface
    from metainfer.ckb.routing import Routing
    from metainfer.generate.constants import Constant

PROMPT_VERSION = 6
"""Of all prompt files; part of an engine's inputs."""


@dataclass(frozen=True)
class Brief:
    """One contract's units, to be written as one Python file."""

    contract: Contract
    module: str
    """The file of the engine that the units will stand in, without `.py`."""
    neighbours: Sequence[UnitInterface]
    """Units of other contracts that these may use."""
    constants: Sequence[Constant]
    facts: Mapping[str, Any]
    imports: Sequence[str] = ()
    """Lines that the signatures need."""
    reference: str = ""
    """Code that may be looked at; empty under the policy `none`."""

    @property
    def units(self) -> list[str]:
        return [unit.name for unit in self.contract.units]

    @property
    def likely_imports(self) -> list[str]:
        """Lines for the constants that the contract names, and for the units around; what stays unused is taken out."""
        words = _words(self.contract)
        constants = [constant.name for constant in self.constants if constant.name in words]
        units = [unit.name for unit in self.neighbours if unit.name in words]
        # A name to a line, before the other imports: else they would be lines of an exemplar that the spec hides.
        lines = [f"from .config import {name}" for name in constants]
        return [*lines, *(f"from .units import {name}" for name in units)]


def make_brief(
    contract: Contract,
    routing: Routing,
    modules: Mapping[str, str],
    constants: Sequence[Constant],
    facts: Mapping[str, Any],
    imports: Sequence[str],
    reference: str = "",
) -> Brief:
    """The brief of one routed contract.

    `modules`: unit name to module, from the blueprint. `imports`: the lines that its signatures need.
    """
    own = {unit.name for unit in contract.units}
    words = _words(contract)
    required = {unit.name for other in routing.contracts if other.id in contract.requires for unit in other.units}
    neighbours = [
        unit
        for other in routing.contracts
        for unit in other.units
        if unit.name not in own and (unit.name in required or unit.name in words)
    ]
    return Brief(contract, modules[next(iter(own))], neighbours, constants, facts, imports, reference)


def implementer_prompt(brief: Brief) -> tuple[Message, ...]:
    """The first two messages of an implementer's conversation."""
    return (
        Message(role="system", content=_render("implementer.system.md.j2", brief)),
        Message(role="user", content=_render("implementer.task.md.j2", brief)),
    )


def optimiser_prompt(brief: Brief, present: str, figures: Sequence[str]) -> tuple[Message, ...]:
    """The same for a file that is to become faster: `present` is what it holds now, `figures` are of a profile."""
    return (
        Message(role="system", content=_render("implementer.system.md.j2", brief)),
        Message(role="user", content=_render("optimiser.task.md.j2", brief, present=present, figures=figures)),
    )


def task_and_rules(brief: Brief) -> tuple[str, str]:
    """The same for somebody who puts the file where it belongs, and not into an answer."""
    return _render("implementer.task.md.j2", brief), _render("rules.md.j2", brief)


def feedback_prompt(brief: Brief, findings: Sequence[str]) -> Message:
    """What is wrong with the last answer."""
    return Message(role="user", content=_render("implementer.feedback.md.j2", brief, findings=findings))


def _words(contract: Contract) -> set[str]:
    """Every word of what a contract says and of its signatures."""
    return set(re.findall(r"\w+", "\n".join([contract.semantics, *(unit.signature for unit in contract.units)])))


def _render(template: str, brief: Brief, **values: Any) -> str:
    return render(template, brief=brief, **values)
