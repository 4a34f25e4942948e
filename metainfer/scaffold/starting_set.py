"""What ships with metainfer for a repository to begin with: the knowledge base and an example of a spec."""

from __future__ import annotations

from pathlib import Path

from metainfer.errors import MachineError

_PACKAGE = Path(__file__).resolve().parents[1]
EXAMPLE = "specs/tiny-qwen3.yaml"


def starting_knowledge() -> dict[str, bytes]:
    """The contracts that ship with metainfer, by path below `ckb/`."""
    root = _shipped("ckb")
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not any(p.startswith(".") or p == "__pycache__" for p in path.relative_to(root).parts)
    }


def example_spec() -> bytes:
    """A spec that every machine can run in a minute."""
    return _shipped(EXAMPLE).read_bytes()


def _shipped(path: str) -> Path:
    """In a wheel beside the code (`shipped/`), in a checkout where it is worked on."""
    for root in (_PACKAGE / "shipped", _PACKAGE.parent):
        if (root / path).exists():
            return root / path
    raise MachineError(f"this installation of metainfer lacks {path}; install it again from a wheel or a checkout")
