"""Reading specs, and refusing early what this version or this machine cannot serve."""

from __future__ import annotations

import platform
from pathlib import Path

from metainfer.errors import RefusedError
from metainfer.spec.document import Document, DocumentError
from metainfer.spec.models import Spec


def load_spec(path: Path) -> Spec:
    """Read and validate a spec. Raises DocumentError with every problem as `file:line:column: …`."""
    return _valid(Document.read(path, lenient=True))


def load_named_spec(path: Path) -> Spec:
    """`load_spec`, for whoever goes by the file's name: it must be the spec's. Raises DocumentError at the `name`."""
    document = Document.read(path, lenient=True)
    spec = _valid(document)
    if spec.name != path.stem:
        raise DocumentError(
            [f"{document.where(['name'])}: name: is {spec.name}, but the file is {path.name}; make them agree"]
        )
    return spec


def _valid(document: Document) -> Spec:
    if document.is_empty:
        needed = ", ".join(field.alias or name for name, field in Spec.model_fields.items() if field.is_required())
        raise DocumentError(
            [f"{document.path}:1:1: is empty; a spec needs {needed}: start from a copy of one in specs/"]
        )
    return document.validate(Spec)


class UnservedError(RefusedError):
    """The spec is valid, but this version has no knowledge for it, or this machine cannot run it."""


def refuse_unserved(spec: Spec) -> None:
    """Raise UnservedError naming everything in the spec that no part of this version serves."""
    complaints = [
        f"{key}: {given!r} is not served yet; served: {', '.join(map(repr, served))}"
        for key, given, served in (
            ("target.platform", spec.target.platform, ("cpu-x86-avx2",)),
            ("target.devices", spec.target.devices, (1,)),
            ("parallel.tensor", spec.parallel.tensor, (1,)),
            ("precision.weights", spec.precision.weights, ("fp32", "bf16")),
            ("precision.activations", spec.precision.activations, ("fp32",)),
            ("precision.kv_cache", spec.precision.kv_cache, ("fp32",)),
        )
        if given not in served
    ]
    if complaints:
        raise UnservedError("\n".join(f"{spec.name}: {complaint}" for complaint in complaints))


def refuse_machine(spec: Spec | None = None) -> None:
    """Raise UnservedError if the spec's engine (any engine, without a spec) cannot run on this machine.

    They need Linux on x86-64 with AVX2 and FMA. A few milliseconds, so that it can come before everything else.
    """
    platform_name = spec.target.platform if spec else "cpu-x86-avx2"
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in ("x86_64", "AMD64"):
        raise UnservedError(
            f"this is {system} on {machine}; engines for {platform_name} are built and judged on Linux x86-64. "
            "Run metainfer there: a container, a virtual machine or a CI runner will do"
        )
    flags = _cpu_flags()
    if missing := {"avx2", "fma"} - flags:
        raise UnservedError(f"this CPU lacks {', '.join(sorted(missing))}, which {platform_name} engines need")


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise UnservedError(f"/proc/cpuinfo: {error.strerror}; it says whether this CPU has AVX2 and FMA") from error
    return next((set(line.partition(":")[2].split()) for line in text.splitlines() if line.startswith("flags")), set())
