"""YAML errors: where they point, what they say, and that no input gets past them or takes the process down."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from metainfer.spec import document
from metainfer.spec.document import Document, DocumentError


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    width: int
    label: str = ""


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    inner: Inner
    ratio: float = 0.5


def problems(text: str, *, lenient: bool = True) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        Document.parse(text, "s.yaml", lenient=lenient).validate(Outer)
    return list(caught.value.problems)


def test_an_unknown_key_is_named_where_it_stands_with_the_nearest_valid_one() -> None:
    assert problems("inner:\n  width: 3\n  labell: x\n") == [
        "s.yaml:3:3: inner.labell: there is no such key; did you mean label?"
    ]


def test_a_missing_key_is_reported_at_the_mapping_that_lacks_it() -> None:
    assert problems("ratio: 1.0\ninner:\n  label: x\n") == ["s.yaml:2:1: inner.width: is missing"]


def test_a_wrong_value_is_shown() -> None:
    assert problems("inner: {width: wide}\n") == [
        "s.yaml:1:9: inner.width: input should be a valid integer (given: 'wide')"
    ]


def test_all_problems_come_at_once_in_the_order_of_the_file() -> None:
    text = "ratio: yes\ninner:\n  width: 1\n  width: 2\n  lable: x\nratoi: 2\n"
    assert [line.split(": ")[0] for line in problems(text)] == [
        "s.yaml:1:8",
        "s.yaml:4:3",
        "s.yaml:5:3",
        "s.yaml:6:1",
    ]


def test_a_key_that_stands_twice_is_named_with_what_it_stands_in() -> None:
    assert problems("inner:\n  width: 1\n  width: 2\n") == ["s.yaml:3:3: inner.width: stands here twice"]
    assert problems("ratio: 1.0\nratio: 2.0\ninner: {width: 1}\n") == ["s.yaml:2:1: ratio: stands here twice"]


def test_a_strict_parse_stops_at_the_words_already() -> None:
    with pytest.raises(DocumentError, match="stands here twice"):
        Document.parse("a: 1\na: 2\n", "s.yaml")


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("a: [1, 2\n", "2:1", "expected"),
        ("a: 1\n\tb: 2\n", "2:1", ""),
        ("--- {}\n--- {}\n", "2:1", "another document"),
        ("a: \x07\n", "1:4", "control characters"),
        ("x: &x [1]\ny: *x\n", "1:4", "aliases are not supported"),
        ("a: !!python/object/apply:os.system [ls]\n", "1:4", "tag"),
        ("a: !mine {}\n", "1:4", "tag"),
        ("? [a]\n: 1\n", "1:3", "a key must be a name"),
        ("a: no\n", "1:4", "write true or false, or quote"),
        ("a: 0x1f\n", "1:4", "plain number, or quote"),
        ("a: 0777\n", "1:4", "plain number, or quote"),
        ("a: 1_000\n", "1:4", "plain number, or quote"),
        ("a: 12:30:45\n", "1:4", "plain number, or quote"),
        ("a: .inf\n", "1:4", "finite number"),
        ("a: .nan\n", "1:4", "finite number"),
        ("a: 1.5:30.5\n", "1:4", None),
        ("a: 1e999\n", "1:4", "larger than any number"),
        ("a: " + "9" * 5000 + "\n", "1:4", "plain number"),
    ],
)
def test_what_yaml_reads_otherwise_than_it_looks_is_refused(text: str, position: str, message: str | None) -> None:
    if message is None:
        assert Document.parse(text, "s.yaml").data == {"a": "1.5:30.5"}
        return
    with pytest.raises(DocumentError) as caught:
        Document.parse(text, "s.yaml")
    (line,) = caught.value.problems
    assert line.startswith(f"s.yaml:{position}: ")
    assert message in line


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1000.0),
        ("1.0e-6", 1e-6),
        ("'1e3'", "1e3"),
        ("1E-2", 0.01),
        ("-3", -3),
        ("0", 0),
        (".5", 0.5),
        ("2026-12-01", "2026-12-01"),
        ("'no'", "no"),
        ("True", True),
        ("~", None),
        ("1.2.3", "1.2.3"),
    ],
)
def test_plain_values_are_what_they_look_like(text: str, value: object) -> None:
    read = Document.parse(f"a: {text}\n", "s.yaml").data["a"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "a:\n"])
@pytest.mark.parametrize("depth", [65, 900, 20_000])
def test_deep_nesting_is_an_error_and_not_a_crash(opening: str, depth: int) -> None:
    with pytest.raises(DocumentError):
        Document.parse(opening * depth, "s.yaml")


@pytest.mark.parametrize("depth", [66, 900])
def test_deep_nesting_is_an_error_with_the_loader_in_python_too(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_LOADER", yaml.SafeLoader)
    with pytest.raises(DocumentError):
        Document.parse("[" * depth + "]" * depth, "s.yaml")


def test_a_bomb_of_aliases_is_refused_at_its_first_alias() -> None:
    bomb = "a: &a [x]\n" + "".join(
        f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(DocumentError, match="aliases are not supported"):
        Document.parse(bomb, "s.yaml")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"none\.yaml: No such file"):
        Document.read(tmp_path / "none.yaml")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("a: é".encode("latin-1"))
    with pytest.raises(DocumentError, match="not UTF-8 at byte 3"):
        Document.read(latin)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (1 << 20) + b"#")
    with pytest.raises(DocumentError, match="no file of this kind needs more"):
        Document.read(large)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert Document.read(path).data == {"a": 1}


@given(st.text(max_size=60) | st.text(alphabet="abc:-[]{}&*!?|>'\"#,% \n\t0123e.", max_size=60))
def test_any_text_gives_data_or_errors_with_a_place(text: str) -> None:
    try:
        document = Document.parse(text, "s.yaml")
    except DocumentError as error:
        for line in error.problems:
            assert line.startswith("s.yaml:")
        return
    try:
        document.validate(Outer)
    except DocumentError as error:
        for line in error.problems:
            assert line.startswith("s.yaml:")


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(string.printable, max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcxyz_", min_size=1), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text("abcxyz_", min_size=1), plain, max_size=5))
def test_dumped_data_reads_back_as_it_was(data: dict[str, object]) -> None:
    class NoAliases(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    text = yaml.dump(data, Dumper=NoAliases, allow_unicode=True, default_style='"' if "e" in str(data) else None)
    try:
        assert Document.parse(text, "s.yaml").data == data
    except DocumentError as error:
        # A dumper may quote all scalars with a tag for what is no text; such tags are refused, never misread.
        assert all("is read as" in line or "tag" in line for line in error.problems)  # noqa: PT017


@given(st.integers(0, 30), st.integers(0, 8))
def test_the_place_is_the_line_and_column_of_the_unknown_key(blank_lines: int, indent: int) -> None:
    text = "\n" * blank_lines + "inner:\n" + " " * (indent + 1) + "width: 1\n" + " " * (indent + 1) + "wrong: 1\n"
    (line,) = problems(text)
    assert line.startswith(f"s.yaml:{blank_lines + 3}:{indent + 2}: inner.wrong")
