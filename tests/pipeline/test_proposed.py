"""Proposals beside an engine: what no pull request may hold is refused when it is read, not after the gates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metainfer.ckb.proposals import ProposalError
from metainfer.ckb.store import KnowledgeBase
from metainfer.pipeline.proposed import read_proposals

CKB = Path(__file__).parents[2] / "ckb"
CONTRACT = "general/paged-kv-cache"


def an_exemplar(folder: Path, path: str, text: str = "") -> Path:
    """A proposal of one more exemplar, kept at `path` in its contract's folder."""
    contract = KnowledgeBase.load(CKB).contracts[CONTRACT]
    exemplar = contract.exemplars[0].model_dump(mode="json", exclude_defaults=True)
    delta = {
        "kind": "new-exemplar",
        "contract": CONTRACT,
        "version": contract.version,
        "evidence": [{"summary": "It is faster", "source": "a test"}],
        "exemplar": {**exemplar, "path": path, "sources": []},
        "files": {path: text or (CKB / CONTRACT / exemplar["path"]).read_text()},
    }
    file = folder / "delta.json"
    file.write_text(json.dumps({"title": "More", "author": "a reviewer", "deltas": [delta]}))
    return file


def test_an_ordinary_path_is_fine(tmp_path: Path) -> None:
    proposed = read_proposals([an_exemplar(tmp_path, "exemplars/fast.py")], CKB)
    assert f"ckb/{CONTRACT}/exemplars/fast.py" in proposed.files


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("exemplars/con.py", "", "exemplars/con.py: 'con.py' is not allowed as a part of a path"),
        ("exemplars/a b.py", "", "'a b.py' is not allowed"),
        ("exemplars/\u00e9.py", "", "is not allowed"),
        ("exemplars/" + "a" * 200 + ".py", "", "longer than 200 characters"),
        ("Exemplars/fast.py", "", f"differs only in case from ckb/{CONTRACT}/exemplars"),
        ("exemplars/nul.py.py", "", "'nul.py.py' is not allowed"),
        ("exemplars/binary.py", "# \0", "holds a NUL byte"),
    ],
    ids=["device", "space", "accent", "long", "case", "device with a suffix", "binary"],
)
def test_what_no_pull_request_may_hold_is_refused_at_once(path: str, text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ProposalError) as caught:
        read_proposals([an_exemplar(tmp_path, path, text)], CKB)
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("ckb/")
