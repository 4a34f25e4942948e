"""What a model costs: as a person says, as a file of list prices has it, or nothing on a machine of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from metainfer.agents.address import read_address
from metainfer.agents.budget import Price
from metainfer.errors import InputError

PRICES = Path(__file__).parent / "prices.yaml"


class PriceList(BaseModel):
    """Prices as one source stated them on a day."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    as_of: date
    models: Mapping[str, Price] = Field(min_length=1)
    """By the model's name at its endpoint."""


_LISTS = TypeAdapter(list[PriceList])


def price_for(model: str, base_url: str, file: Path = PRICES) -> Price | None:
    """The listed price; None is a model on a machine of one's own, which costs nothing per token.

    InputError for a model elsewhere that no list has: a budget in dollars that counts it as free would be none.
    """
    address = read_address(base_url)
    if address.is_own:
        return None
    listed = {name: price for one in read_prices(file) for name, price in one.models.items()}
    if model not in listed:
        raise InputError(
            f"no price is known for {model!r} at {address.shown}; say what it costs in dollars per million tokens: "
            "--price INPUT,OUTPUT (0,0 if it is free)"
        )
    return listed[model]


def read_prices(file: Path) -> list[PriceList]:
    """The lists of a file. InputError if it is none."""
    import yaml

    try:
        return _LISTS.validate_python(yaml.safe_load(file.read_text("utf-8")))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise InputError(f"{file}: no list of prices ({' '.join(str(error).split())[:300]})") from error


def parse_price(given: str) -> Price:
    """INPUT,OUTPUT in dollars per million tokens. InputError for anything else."""
    try:
        figures = [float(figure) for figure in given.split(",")]
        if len(figures) != 2:
            raise ValueError(given)
        return Price(input_usd=figures[0], output_usd=figures[1])
    except ValueError:
        raise InputError(f"--price {given!r}: write dollars per million tokens as INPUT,OUTPUT, e.g. 0.5,1.5") from None
