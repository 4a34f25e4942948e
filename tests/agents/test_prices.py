"""What a model costs, and that no model which costs something is taken for free."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.agents.budget import Price
from metainfer.agents.prices import PRICES, parse_price, price_for, read_prices
from metainfer.errors import InputError
from metainfer.pipeline.agents import AgentAccess

HOSTED = "https://api.example.com/v1"


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8000/v1", "http://localhost/v1", "http://10.1.2.3/v1", "http://[::1]:8/v1", "http://gpu-box:8/v1",
     "http://vllm.prod.internal/v1", "HTTP://LOCALHOST.:8/v1", "http://me:secret@gpu-box/v1"],
)  # fmt: skip
def test_a_model_of_ones_own_costs_nothing(url: str) -> None:
    assert price_for("any", url) is None


def test_what_is_given_overrides_everything() -> None:
    given = parse_price("0.5,1.5")
    assert given == Price(input_usd=0.5, output_usd=1.5)
    for model, url in (("gpt-5", "http://localhost/v1"), ("unheard-of", HOSTED)):
        assert AgentAccess(url, price=given).priced_for(model).price == given
    assert AgentAccess(HOSTED, price=parse_price("0,0")).priced_for("unheard-of").price == Price(
        input_usd=0, output_usd=0
    )


def test_a_listed_model_has_its_listed_price(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("- {source: x, as_of: 2026-01-01, models: {m: {input_usd: 1, output_usd: 2}}}\n")
    assert price_for("m", HOSTED, file=file) == Price(input_usd=1.0, output_usd=2.0)


def test_a_hosted_model_without_a_price_is_refused() -> None:
    with pytest.raises(InputError, match=r"no price is known for 'unheard-of' .*--price"):
        price_for("unheard-of", HOSTED)


@pytest.mark.parametrize(
    "url",
    ["http://134744072/v1", "http://0x08080808/v1", "http://010.8.8.8/v1", "http://[::ffff:8.8.8.8]/v1",
     "http://api\uff0eexample\uff0ecom/v1", "http://x.local.example.com/v1", "http://localhost@example.com/v1",
     "http://example.com?.local", "http://me:secret@example.com/v1?key=secret"],
)  # fmt: skip
def test_an_address_that_only_looks_like_ones_own_is_not_free(url: str) -> None:
    with pytest.raises(InputError, match="no price is known") as caught:
        price_for("unheard-of", url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["localhost", "ftp://host/v1", "http://", "http:///v1", "http://[::1/v1", "http://host:99999/v1", "http://host:x/v1",
     "http://a b/v1", "http://example.com\\.local/v1", "http://me:secret@/v1", "http://host:0/v1"],
)  # fmt: skip
def test_what_is_no_address_is_refused_before_anything_is_asked(url: str) -> None:
    with pytest.raises(InputError, match="no URL of an endpoint") as caught:
        AgentAccess(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("given", ["1", "1,2,3", "a,b", "-1,2", "nan,1", "inf,1", ""])
def test_a_price_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(InputError, match="INPUT,OUTPUT"):
        parse_price(given)


@pytest.mark.parametrize(
    "text", ["x", "- {source: x}", "{", "- {source: x, as_of: 2026-01-01, models: {m: {input_usd: 1}}}"]
)
def test_a_file_that_is_no_price_list_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"prices\.yaml: no list of prices"):
        price_for("m", HOSTED, file=file)


def test_the_prices_that_we_ship_name_their_source_and_day() -> None:
    for one in read_prices(PRICES):
        assert one.source
        assert one.as_of.year >= 2026
        assert all(price.output_usd >= price.input_usd > 0 for price in one.models.values())


def test_an_address_is_shown_without_its_password() -> None:
    assert AgentAccess("https://me:secret@api.example.com:8443/v1").shown_url == "https://api.example.com:8443/v1"
