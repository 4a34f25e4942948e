"""The machine a benchmark ran on, and how quiet it was meanwhile. Nothing here names a host, a user or a folder."""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel, ConfigDict

_CPU = Path("/sys/devices/system/cpu/cpu0")
_UNKNOWN = "unknown"
_SIZE_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Environment(BaseModel):
    """What a figure depends on besides the code."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu: str
    physical_cores: int
    logical_cores: int
    usable_cores: int
    """Cores that this process may run on."""
    last_cache_bytes: int
    """0 if the kernel does not say."""
    memory_bytes: int
    governor: str
    system: str
    python: str
    packages: dict[str, str]
    load_average: tuple[float, float, float]
    """Runnable processes over 1, 5 and 15 minutes when the run began."""


class Noise(BaseModel):
    """What else the machine did during the run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steal_share: float
    """Part of all cores' time that the hypervisor gave to other guests."""
    foreign_share: float
    """Part of all cores' time spent in processes that this run did not start."""


def capture_environment() -> Environment:
    """Read the machine's description."""
    return Environment(
        cpu=_cpu_model(),
        physical_cores=psutil.cpu_count(logical=False) or 0,
        logical_cores=psutil.cpu_count() or 0,
        usable_cores=usable_cores(),
        last_cache_bytes=last_cache_bytes(),
        memory_bytes=psutil.virtual_memory().total,
        governor=_read(_CPU / "cpufreq" / "scaling_governor") or _UNKNOWN,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=".".join(map(str, sys.version_info[:3])),
        packages={name: _version(name) for name in ("metainfer", "torch", "transformers", "numpy")},
        load_average=os.getloadavg(),
    )


def usable_cores() -> int:
    """Cores that this process may run on: the default thread count of a run."""
    return len(os.sched_getaffinity(0))


def last_cache_bytes() -> int:
    """Size of the largest cache of the first core; 0 if the kernel does not say."""
    sizes = [_parse_size(_read(index / "size")) for index in (_CPU / "cache").glob("index*")]
    return max(sizes, default=0)


class NoiseMeter:
    """Counts what the whole machine's cores did between construction and `noise`."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = psutil.cpu_times()

    def noise(self, own_cpu_s: float) -> Noise:
        """`own_cpu_s`: CPU seconds that this run and its subjects used since construction."""
        now = psutil.cpu_times()
        capacity_s = max(1e-9, (time.monotonic() - self._began) * (psutil.cpu_count() or 1))
        steal_s = now.steal - self._before.steal
        busy_s = _busy_s(now) - _busy_s(self._before)
        return Noise(
            steal_share=_share(steal_s / capacity_s),
            foreign_share=_share((busy_s - own_cpu_s) / capacity_s),
        )


def _busy_s(times: Any) -> float:
    """User and system time, interrupts included; guest time is part of user time already."""
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _share(value: float) -> float:
    """Counters of different granularity can differ by a tick either way."""
    return min(1.0, max(0.0, value))


def _cpu_model() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or _UNKNOWN


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return _UNKNOWN


def _parse_size(text: str) -> int:
    """`32768K` in bytes."""
    unit = _SIZE_UNITS.get(text[-1:], 1)
    digits = text.rstrip("KMG")
    return int(digits) * unit if digits.isdigit() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
