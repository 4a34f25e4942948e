"""What making an engine may cost at most, from the spec alone: nobody is asked, and nothing is spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from metainfer.agents.prices import PRICES, read_prices
from metainfer.generate.blueprint import NEEDED_UNITS

if TYPE_CHECKING:
    from metainfer.agents.budget import Price
    from metainfer.ckb.routing import Routing
    from metainfer.spec.models import Generation


@dataclass(frozen=True)
class Estimate:
    """The worst case. `usd` None: it depends on a price that no list has."""

    usd: float | None
    answers: int
    """Answers of the model at most, those of roles left out."""
    words: str


def estimate(generation: Generation, routing: Routing | None = None) -> Estimate:
    """The bounds that the spec itself sets; `routing` tells how many contracts there are to write."""
    if not generation.asks_a_model:
        return Estimate(0.0, 0, "nothing: the specializer folds verified exemplars, offline")
    contracts = _contracts(generation, routing)
    per_contract = 1 + generation.rounds + generation.samples
    answers = contracts * per_contract if generation.backend == "agents" else 0
    if generation.optimise:
        answers += generation.optimise_contracts * per_contract
    price = _listed(generation.model or "")
    limits = [f"budget_usd {generation.budget_usd:g}"]
    usd: float | None = generation.budget_usd
    if price is not None and generation.budget_tokens is not None:
        dearest = generation.budget_tokens * max(price.input_usd, price.output_usd) / 1e6
        usd = min(generation.budget_usd, dearest)
        limits.append(f"budget_tokens {generation.budget_tokens:,}, {dearest:.2f} USD at the listed price")
    known = "" if price else "; no list has this model's price, so it is free on a machine of one's own or refused"
    words = (
        f"at most {usd:.2f} USD ({'; '.join(limits)}{known}); at most {answers} answers of up to "
        f"{generation.max_tokens:,} tokens by {generation.model}, beside its roles'"
    )
    return Estimate(usd, answers, words)


def _contracts(generation: Generation, routing: Routing | None) -> int:
    if generation.contracts:
        return len(generation.contracts)
    return len({contract.id for contract in routing.by_unit.values()}) if routing else len(NEEDED_UNITS)


def _listed(model: str) -> Price | None:
    return next((one.models[model] for one in read_prices(PRICES) if model in one.models), None)
