"""A whole engine's units as a good model might write them: right, from the contracts alone, and unlike the exemplars.

Each file beside this one makes the units of one contract, `<layer>.<contract>.py`. They are no modules of the tests:
what they import, `.units` and `.config`, exists only where the assembler puts them.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def handwritten(contract: str) -> str:
    """The file of one contract, e.g. `family/rope`."""
    return (FOLDER / f"{contract.replace('/', '.')}.py").read_text("utf-8")


def handwritten_contracts() -> list[str]:
    """Ids of all contracts with a file here."""
    return sorted(path.stem.replace(".", "/", 1) for path in FOLDER.glob("*.*.py"))


def fenced(code: str) -> str:
    """An answer with the file in it."""
    return f"Here it is.\n\n```python\n{code.strip()}\n```\n"


RMSNORM = handwritten("family/rmsnorm")
RMSNORM_WITHOUT_EPS = RMSNORM.replace("power + self._eps", "power")
ROPE = handwritten("family/rope")
SWIGLU = handwritten("family/swiglu-mlp")
