"""What a spec may say, what it means, and what is refused where."""

from __future__ import annotations

import platform
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from metainfer.errors import ExitCode
from metainfer.files import canonical_json
from metainfer.spec import load
from metainfer.spec.document import DocumentError
from metainfer.spec.load import UnservedError, load_named_spec, load_spec, refuse_machine, refuse_unserved
from metainfer.spec.models import Spec
from metainfer.spec.schema import json_schema, schema_bytes

SPECS = Path(__file__).resolve().parents[2] / "specs"
BASE: dict[str, Any] = {
    "apiVersion": "metainfer/v1",
    "name": "tiny",
    "model": {"source": {"path": "model"}, "licence": "apache-2.0"},
    "target": {"platform": "cpu-x86-avx2"},
    "workload": {"max_model_len": 128, "max_concurrency": 4},
    "serving": {"features": ["chat"]},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    data = deepcopy(BASE)
    *parents, last = path.split(".")
    here = data
    for key in parents:
        here = here.setdefault(key, {})
    here[last] = value
    return data


def spec_of(path: str = "name", value: Any = "tiny") -> Spec:
    return Spec.model_validate(changed(path, value))


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_spec_of_the_repository_is_valid_served_and_named_after_its_file(path: Path) -> None:
    spec = load_spec(path)
    refuse_unserved(spec)
    assert spec.name == path.stem
    assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=schema.json\n")


def test_the_exported_schema_is_the_schema_of_the_models() -> None:
    assert (SPECS / "schema.json").read_bytes() == schema_bytes(), (
        "run: python -m metainfer.spec.schema > specs/schema.json"
    )


def test_every_field_of_the_schema_is_described() -> None:
    schema = json_schema()
    lacking = [
        f"{owner}.{name}"
        for owner, part in [("spec", schema), *schema["$defs"].items()]
        for name, field in part["properties"].items()
        if not field.get("description")
    ]
    assert lacking == []


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("name", "Qwen", "lower-case"),
        ("name", "a/b", "lower-case"),
        ("name", "..", "lower-case"),
        ("name", "a" * 65, "64"),
        ("name", "a.lock.", "lower-case"),
        ("model.source", {}, "exactly one"),
        ("model.source", {"path": "a", "hf": {"id": "a/b", "revision": "0" * 40}}, "exactly one"),
        ("model.source", {"hf": {"id": "a/b", "revision": "main"}}, "pattern"),
        ("model.source", {"hf": {"id": "a", "revision": "0" * 40}}, "pattern"),
        ("model.source", {"gguf": {"sha256": "0" * 64}}, "exactly one of path and wheels"),
        ("model.source", {"gguf": {"wheels": ["a>=1"], "sha256": "0" * 64}}, "name==version"),
        ("model.source", {"gguf": {"wheels": ["--index-url=x==1"], "sha256": "0" * 64}}, "name==version"),
        ("model.source", {"gguf": {"path": "a", "sha256": "xyz"}}, "pattern"),
        ("model.source", {"random": {"config": {}, "seed": -1}}, "greater than or equal to 0"),
        ("workload.max_model_len", 0, "greater than or equal to 2"),
        ("workload.max_model_len", 4096.0, "valid integer"),
        ("workload.max_model_len", True, "valid integer"),
        ("workload.max_concurrency", 0, "greater than or equal to 1"),
        ("serving.features", [], "at least 1"),
        ("serving.features", ["streaming"], "chat, completions or both"),
        ("serving.features", ["chat", "chat"], "twice"),
        ("goals.decode_mbu", 1.5, "less than or equal to 1"),
        ("goals.ttft_ms_p95", float("nan"), "finite"),
        ("goals.ttft_ms_p95", float("inf"), "finite"),
        ("generation.budget_usd", -1, "greater than or equal to 0"),
        ("generation.budget_usd", float("inf"), "finite"),
    ],
)
def test_values_out_of_range_are_refused(path: str, value: Any, complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        spec_of(path, value)


def test_errors_of_a_spec_file_name_line_column_and_the_nearest_word(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    data = changed("target.platform", "cpu-x86-avx")
    data["workload"] = {"max_modellen": 128, "max_concurrency": 4}
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    with pytest.raises(DocumentError) as caught:
        load_spec(path)
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    first, second, third = caught.value.problems
    assert first.startswith(f"{path}:8:3: target.platform: ")
    assert first.endswith("did you mean cpu-x86-avx2?")
    assert second == f"{path}:9:1: workload.max_model_len: is missing"
    assert third == f"{path}:10:3: workload.max_modellen: there is no such key; did you mean max_model_len?"


@pytest.mark.parametrize("text", ["", "\n\n", "# to be written\n", "---\n", "~\n"])
def test_an_empty_spec_is_told_what_a_spec_needs(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(text)
    with pytest.raises(DocumentError) as caught:
        load_spec(path)
    assert caught.value.problems == (
        f"{path}:1:1: is empty; a spec needs apiVersion, name, model, target, workload, serving: start from a copy of "
        "one in specs/",
    )


def test_a_spec_and_its_file_have_one_name(tmp_path: Path) -> None:
    text = "# a comment\n" + yaml.safe_dump(BASE, sort_keys=False)
    for name in ("tiny.yaml", "tiny.yml", "other.yaml"):
        (tmp_path / name).write_text(text)
    assert load_named_spec(tmp_path / "tiny.yaml").name == load_named_spec(tmp_path / "tiny.yml").name == "tiny"
    with pytest.raises(DocumentError) as caught:
        load_named_spec(tmp_path / "other.yaml")
    assert caught.value.problems == (
        f"{tmp_path}/other.yaml:3:1: name: is tiny, but the file is other.yaml; make them agree",
    )


def test_a_value_of_no_allowed_kind_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(changed("model.source", {"random": {"config": 5, "seed": 1}})), encoding="utf-8")
    with pytest.raises(DocumentError) as caught:
        load_spec(path)
    (line,) = caught.value.problems
    assert "model.source.random.config: input should be a valid dictionary or a valid string (given: 5)" in line


def test_the_resolved_spec_holds_the_defaults_and_reads_back_to_the_same() -> None:
    spec = spec_of()
    resolved = spec.resolved()
    assert resolved["precision"] == {"weights": "bf16", "activations": "fp32", "kv_cache": "fp32"}
    assert resolved["workload"]["optimise"] == "latency"
    assert Spec.model_validate(resolved) == spec


@given(st.permutations(["chat", "completions", "streaming", "logprobs", "stop", "seed"]))
def test_the_order_of_features_makes_no_other_engine(features: list[str]) -> None:
    fixed = spec_of("serving.features", sorted(features)).resolved()
    assert canonical_json(spec_of("serving.features", features).resolved()) == canonical_json(fixed)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("target.platform", "cuda-sm90"),
        ("target.devices", 2),
        ("parallel.tensor", 2),
        ("precision.weights", "int8"),
        ("precision.activations", "bf16"),
        ("precision.kv_cache", "fp16"),
    ],
)
def test_valid_names_that_nothing_serves_yet_are_refused_by_name(path: str, value: Any) -> None:
    spec = spec_of(path, value)
    with pytest.raises(UnservedError, match=rf"tiny: {path}: {value!r} is not served yet; served: ") as caught:
        refuse_unserved(spec)
    assert caught.value.exit_code == ExitCode.REFUSED


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "aarch64"), ("Windows", "AMD64")])
def test_another_machine_is_refused_with_the_reason(system: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(UnservedError, match=f"this is {system} on {machine}; .*Linux x86-64"):
        refuse_machine(spec_of())


@pytest.mark.parametrize(("flags", "lacking"), [({"sse2"}, "avx2, fma"), ({"avx2", "sse2"}, "fma")])
def test_a_cpu_without_the_instructions_is_refused(
    flags: set[str], lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    say_flags: Callable[[], set[str]] = lambda: flags  # noqa: E731
    monkeypatch.setattr(load, "_cpu_flags", say_flags)
    with pytest.raises(UnservedError, match=f"this CPU lacks {lacking}, which"):
        refuse_machine()
