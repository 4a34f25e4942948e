"""Damaged specs: every outcome is a spec or errors that point into the file; nothing else escapes."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from metainfer.errors import RefusedError
from metainfer.spec.document import DocumentError
from metainfer.spec.load import load_spec, refuse_unserved
from metainfer.spec.models import Spec

SPECS = sorted((Path(__file__).resolve().parents[2] / "specs").glob("*.yaml"))
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in SPECS}
PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d+):(?P<column>\d+): \S")

fuzz = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def outcome(path: Path, content: bytes | str) -> Spec | list[str]:
    """The spec, or the lines of its errors, each checked to point at a line of the file that exists."""
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    path.write_bytes(data)
    try:
        spec = load_spec(path)
    except DocumentError as error:
        problems = error.problems
        assert str(error) == "\n".join(problems)  # noqa: PT017
    else:
        with contextlib.suppress(RefusedError):
            refuse_unserved(spec)
        assert Spec.model_validate(spec.resolved()) == spec
        return spec
    assert problems
    for problem in problems:
        assert "\n" not in problem
        check_place(problem, path, data)
    return list(problems)


def check_place(problem: str, path: Path, data: bytes) -> None:
    assert problem.startswith(f"{path}:")
    if "not UTF-8" in problem:
        return
    place = PLACE.match(problem)
    assert place, problem
    # YAML 1.1 ends lines at more characters than editors do.
    breaks = (r"\r\n|[\r\n\x85\u2028\u2029]", r"\r\n|[\r\n]", r"\n")
    text, line, column = data.decode("utf-8-sig"), int(place["line"]), int(place["column"])
    assert any(
        1 <= line <= len(lines) and 1 <= column <= len(lines[line - 1]) + 1
        for lines in (re.split(pattern, text) for pattern in breaks)
    ), problem


@pytest.mark.parametrize("name", TEXTS)
def test_the_specs_as_they_are_have_no_errors(name: str, tmp_path: Path) -> None:
    assert isinstance(outcome(tmp_path / "s.yaml", TEXTS[name]), Spec)


@fuzz
@given(data=st.data())
def test_text_cut_replaced_and_inserted_anywhere(data: st.DataObject, tmp_path: Path) -> None:
    text = TEXTS[data.draw(st.sampled_from(sorted(TEXTS)))]
    for _ in range(data.draw(st.integers(1, 3))):
        first = data.draw(st.integers(0, len(text)))
        last = first + data.draw(st.integers(0, 12))
        new = data.draw(st.text(alphabet="abc:-[]{}&*!?|>'\"#,% \n\r\t\x85\u2028\ufeff\x070129e.~é", max_size=6))
        text = text[:first] + new + text[last:]
    outcome(tmp_path / "s.yaml", text)


@fuzz
@given(data=st.data())
def test_lines_dropped_doubled_moved_and_indented(data: st.DataObject, tmp_path: Path) -> None:
    lines = TEXTS[data.draw(st.sampled_from(sorted(TEXTS)))].splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.sampled_from(["drop", "double", "move", "indent", "dedent"])):
            case "drop" if len(lines) > 1:
                del lines[at]
            case "double":
                lines.insert(at, lines[at])
            case "move":
                lines.insert(data.draw(st.integers(0, len(lines) - 1)), lines.pop(at))
            case "indent":
                lines[at] = " " + lines[at]
            case "dedent":
                lines[at] = lines[at].removeprefix(" ")
    outcome(tmp_path / "s.yaml", "\n".join(lines) + "\n")


@fuzz
@example(content="\u1000\0".encode())
@example(content="a: \u00e9\n\U0001f600 b\x01".encode())
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode("utf-16")))
def test_any_bytes(content: bytes, tmp_path: Path) -> None:
    outcome(tmp_path / "s.yaml", content)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["no", "on", "0777", "1e3", "2026-12-01", "bf16", "../..", "--help", "a" * 5000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def places(data: Any, loc: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [found for key, value in inner for found in [(*loc, key), *places(value, (*loc, key))]]


@fuzz
@given(data=st.data(), value=values)
def test_any_value_in_any_place(data: st.DataObject, value: Any, tmp_path: Path) -> None:
    spec = yaml.safe_load(TEXTS[data.draw(st.sampled_from(sorted(TEXTS)))])
    *parents, last = data.draw(st.sampled_from(places(spec)))
    here = spec
    for key in parents:
        here = here[key]
    here[last] = value
    outcome(tmp_path / "s.yaml", yaml.safe_dump(spec, sort_keys=False, allow_unicode=True))


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d.update(modle=d.pop("model")), "modle: there is no such key; did you mean model?"),
        (lambda d: d["workload"].update(max_concurency=1), "did you mean max_concurrency?"),
        (lambda d: d["precision"].update(weights="b16"), "did you mean bf16?"),
        (lambda d: d["serving"].update(features=["chat", "completion"]), "did you mean completions?"),
        (lambda d: d.update(apiVersion="metainfer/v2"), "did you mean metainfer/v1?"),
        (lambda d: d["model"]["source"]["random"].update(sede=1), "did you mean seed?"),
        (lambda d: d["model"].update(license="mit"), "did you mean licence?"),
    ],
)
def test_the_nearest_word_is_named(change: Change, expected: str, tmp_path: Path) -> None:
    data = deepcopy(yaml.safe_load(TEXTS["tiny-qwen2"]))
    change(data)
    problems = outcome(tmp_path / "s.yaml", yaml.safe_dump(data, sort_keys=False))
    assert isinstance(problems, list)
    assert any(problem.endswith(expected) for problem in problems), problems


def test_ten_mistakes_are_ten_lines_in_the_file_s_order(tmp_path: Path) -> None:
    text = """\
apiVersion: metainfer/v9
name: Tiny
model:
  source: {path: a, random: {config: {}, seed: 1}}
  licence: no
target: {platform: cpu, devices: 0}
parallel: {tensor: one}
workload: {max_model_len: 0777, max_concurrency: 1e1, optimise: both}
serving: {features: [streaming]}
serving: {features: [chat]}
"""
    problems = outcome(tmp_path / "s.yaml", text)
    assert isinstance(problems, list)
    lines = [int(problem.removeprefix(f"{tmp_path}/s.yaml:").split(":")[0]) for problem in problems]
    assert lines == [1, 2, 4, 5, 6, 6, 7, 8, 8, 8, 9, 10]


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_schema_accepts_what_the_loader_accepts(path: Path) -> None:
    schema = json.loads((path.parent / "schema.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(path.read_text(encoding="utf-8")))
