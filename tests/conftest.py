"""What holds for every test: one thread per process, kernels kept out of the user's cache, no limits in time."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import settings

# Tests run two at a time: threads that spin for each other would make both wait. Set before torch loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("METAINFER_KERNELS", str(Path(tempfile.gettempdir()) / "metainfer-test-kernels"))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

settings.register_profile("metainfer", deadline=None)  # a busy machine is no finding
settings.load_profile("metainfer")
