"""Exemplars become modules: imports point at each other's homes, misfits are refused by name."""

from __future__ import annotations

import pytest

from metainfer.errors import InputError
from metainfer.generate.assemble import (
    AssemblyError,
    UnitSource,
    assemble_module,
    check_import_order,
    format_python,
    used_config_names,
)
from metainfer.generate.blueprint import MODULES, NEEDED_UNITS, ModuleSlot
from metainfer.spec.names import package_name

LAYERS = ModuleSlot("layers", "Layers.", ("RMSNorm", "Linear"))


def source(text: str, *units: str, path: str = "family/x/exemplars/x.py") -> UnitSource:
    return UnitSource(path, text, units)


def test_imports_of_units_point_at_their_modules_and_own_units_need_none() -> None:
    text = "from .units import Linear, Sequence, Batch\n\n\nclass RMSNorm:\n    pass\n"
    module = assemble_module(LAYERS, [source(text, "RMSNorm")], {})
    assert "from .sequence import Sequence" in module
    assert "from .batch import Batch" in module
    assert "Linear" not in module


def test_lazy_imports_inside_functions_are_rewritten_too() -> None:
    text = "def RMSNorm():\n    from .units import LLMEngine, create_app\n    return LLMEngine, create_app\n"
    module = assemble_module(LAYERS, [source(text, "RMSNorm")], {})
    assert "    from .engine import LLMEngine\n    from .server import create_app\n" in module


def test_two_exemplars_share_one_docstring_and_one_set_of_imports() -> None:
    one = source('"""One."""\nimport math\n\n\nclass RMSNorm:\n    x = math.pi\n', "RMSNorm")
    two = source('"""Two."""\nimport math\nimport os\n\n\nclass Linear:\n    y = math.e\n', "Linear", path="two.py")
    text = format_python({"layers.py": assemble_module(LAYERS, [one, two], {})})["layers.py"]
    assert text.startswith('"""Layers."""\n\nfrom __future__ import annotations\n\nimport math\n\n\nclass RMSNorm:')
    assert text.count("import math") == 1
    assert "import os" not in text


def test_folding_removes_what_only_the_other_branch_imported() -> None:
    text = (
        "import math\nimport cmath\nfrom .facts import S\n\n\nclass RMSNorm:\n    x = math.pi if S.real else cmath.pi\n"
    )
    folded = format_python({"m.py": assemble_module(LAYERS, [source(text, "RMSNorm")], {"real": True})})["m.py"]
    assert "cmath" not in folded
    assert "facts" not in folded
    unfolded = assemble_module(LAYERS, [source(text, "RMSNorm")], None)
    assert "from .facts import S" in unfolded


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("class Other:\n    pass\n", "does not define RMSNorm"),
        ("class RMSNorm:\n    pass\n\n\ndef helper():\n    pass\n", "helper is public"),
        ("from .model import CausalLM\n\n\nclass RMSNorm:\n    pass\n", "import units by"),
        ("from .units import Nothing\n\n\nclass RMSNorm:\n    pass\n", "no module of the blueprint holds"),
        ("from .units import *\n\n\nclass RMSNorm:\n    pass\n", "name the units"),
        ("class RMSNorm(\n", r"family/x/exemplars/x\.py:\d"),
    ],
)
def test_a_misfit_is_refused_by_file_and_reason(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        assemble_module(LAYERS, [source(text, "RMSNorm")], {})


def test_two_files_of_a_module_may_not_define_one_name() -> None:
    one = source("_EPS = 1\n\n\nclass RMSNorm:\n    pass\n", "RMSNorm", path="one.py")
    two = source("_EPS = 2\n\n\nclass Linear:\n    pass\n", "Linear", path="two.py")
    with pytest.raises(AssemblyError, match=r"two\.py:1: _EPS is defined in one\.py too"):
        assemble_module(LAYERS, [one, two], {})


@pytest.mark.parametrize(
    "binding",
    ["async def Linear() -> None:\n    pass", "Linear, _x = 1, 2", "for Linear in (1, 2):\n    pass",
     "if RMSNorm:\n    Linear = 1", "if RMSNorm:\n    class Linear:\n        pass", "_y = (Linear := 1)",
     "with open('x') as Linear:\n    pass", "Linear += 1"],
)  # fmt: skip
def test_no_file_binds_the_unit_of_another_by_a_side_way(binding: str) -> None:
    one = source("class Linear:\n    pass\n", "Linear", path="one.py")
    two = source(f"class RMSNorm:\n    pass\n\n\n{binding}\n", "RMSNorm", path="two.py")
    with pytest.raises(AssemblyError, match=r"two\.py:\d+: Linear is "):
        assemble_module(LAYERS, [one, two], {})


def test_a_loop_may_use_its_names_again() -> None:
    loops = "_total = 0\nfor _i in (1, 2):\n    _total += _i\nfor _i in (1, 2):\n    _total += _i\n"
    text = assemble_module(LAYERS, [source(f"{loops}\n\nclass RMSNorm:\n    pass\n", "RMSNorm")], {})
    assert text.count("for _i in") == 2


def test_an_asynchronous_unit_is_a_unit() -> None:
    text = assemble_module(LAYERS, [source("async def RMSNorm() -> None:\n    pass\n", "RMSNorm")], {})
    assert "async def RMSNorm" in text


def test_a_module_may_not_import_from_one_below_it() -> None:
    check_import_order({"b": "from .a import X\n", "a": "def f():\n    from .b import Y\n"}, ["a", "b"])
    with pytest.raises(AssemblyError, match=r"a\.py imports from b\.py"):
        check_import_order({"a": "from .b import X\n"}, ["a", "b"])


def test_config_names_are_found_in_both_spellings() -> None:
    assert used_config_names(["from .config import A, B\n", "from . import config\nx = config.C\n"]) == {"A", "B", "C"}


def test_every_unit_has_one_home() -> None:
    assert len(NEEDED_UNITS) == sum(len(slot.units) for slot in MODULES)


@pytest.mark.parametrize(
    ("engine", "package"),
    [("qwen2.5-coder-0.5b-cpu", "qwen2_5_coder_0_5b_cpu"), ("7b-chat", "engine_7b_chat"), ("A--b.", "a_b")],
)
def test_package_names_are_identifiers(engine: str, package: str) -> None:
    assert package_name(engine) == package
    assert package.isidentifier()
