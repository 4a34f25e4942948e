"""The numerics gate: the engine against transformers in fp32 on the same model folder, and against itself.

The engine runs in the sandbox under a probe that takes logits where its forward returns them. Everything is judged
outside, from the numbers: tokens by one teacher-forced forward of the reference over prompt and engine tokens.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metainfer.errors import MetainferError
from metainfer.gates.numerics_bounds import judge
from metainfer.gates.perturb import Perturbation, choose_tensors, perturb
from metainfer.gates.prompts import NEW_TOKENS, make_prompts
from metainfer.gates.report import GateLog, GateReport, reproduction, run_gate
from metainfer.gates.subject import Subject, clean_subject
from metainfer.sandbox import Limits, Room, Sandbox

TIE_MARGIN = 1e-4
"""Logits closer than this are a tie: either token is right."""
AGAIN_TOKENS = 4
_ROW_BYTES = 192 << 20
"""Whole rows of logits that are kept of the mixed run."""
_SMALL_BYTES = 64 << 20
"""Models up to this size run on one thread: more would only wait for each other."""
_PROBE_WALL_S = 900.0
_OUT_BYTES = 1 << 30


def numerics_gate(
    engine_dir: Path,
    model_folder: Path,
    sandbox: Sandbox,
    *,
    seed: int = 0,
    kernels: Path | None = None,
) -> GateReport:
    """Compare the engine in `engine_dir` with the reference on `model_folder`.

    `kernels`: folder that keeps built kernels between gates.
    """

    def body(log: GateLog) -> None:
        with clean_subject(engine_dir) as subject, tempfile.TemporaryDirectory(prefix="metainfer-numerics-") as scratch:
            plan = make_plan(subject, model_folder, seed)
            altered = alter(plan, model_folder, seed, Path(scratch))
            shown = {"engine": subject.folder, "model": model_folder, "altered": altered.folder}
            with sandbox.room(shown, shared={"kernels": kernels} if kernels else {}) as room:
                log.figure("sandbox", room.isolating)
                measured = measure(log, room, plan, altered, bool(kernels))
                if measured is not None:
                    outside = {"model": str(model_folder), "perturbed": altered.described(str(altered.folder))}
                    compared, notes = compare(plan | outside, measured)
                    judge(log, plan, compared, notes, _weight_bytes(model_folder))

    return run_gate("numerics", reproduction("numerics", engine_dir, seed), body)


@dataclass(frozen=True)
class Altered:
    """The altered model folders, side by side in one folder."""

    folder: Path
    perturbations: tuple[Perturbation, ...]

    def described(self, folder: str) -> list[dict[str, str]]:
        """As plain data for someone to whom `self.folder` is `folder`."""
        return [
            {"tensor": p.tensor, "folder": f"{folder}/{p.folder.name}", "digest": p.digest} for p in self.perturbations
        ]


def alter(plan: Mapping[str, Any], model_folder: Path, seed: int, scratch: Path) -> Altered:
    """Write the altered model folders below `scratch`."""
    folder = scratch / "altered"
    folder.mkdir()
    scratch.chmod(0o755)
    return Altered(
        folder,
        tuple(
            perturb(model_folder, name, plan["perturb_prompt"], seed, folder / f"{index:03d}")
            for index, name in enumerate(choose_tensors(model_folder, seed))
        ),
    )


def measure(log: GateLog, room: Room, plan: Mapping[str, Any], altered: Altered, has_kernels: bool) -> Path | None:
    """Run the probe beside the engine. Returns its file; None if the engine failed, which is then logged."""
    inside = {
        "engine": room.path("engine"),
        "model": room.path("model"),
        "perturbed": altered.described(room.path("altered")),
    }
    (room.job / "plan.json").write_text(json.dumps({**plan, **inside}), encoding="utf-8")
    room.give(room.job)
    env = {"OMP_NUM_THREADS": str(plan["threads"])}
    if has_kernels:
        env["METAINFER_KERNELS"] = room.path("kernels")
    command = [room.python, "-m", "metainfer.gates.probes.numerics_probe"]
    command += [room.path("job", "plan.json"), room.path("job", "measured.npz")]
    result = room.run(command, env=env, limits=Limits(wall_s=_PROBE_WALL_S, scratch_bytes=4 << 30))
    log.figure("engine_s", round(result.seconds, 1))
    measured = room.job / "measured.npz"
    if not result.ok:
        log.find(f"the engine failed under the probe: it {result.explain()}")
        return None
    if measured.is_symlink() or not measured.is_file() or measured.stat().st_size > _OUT_BYTES:
        log.find("the probe's file is missing, a link, or too large")
        return None
    return measured


def make_plan(subject: Subject, model_folder: Path, seed: int) -> dict[str, Any]:
    """What the probe runs and which logits it keeps."""
    config = subject.config
    weight_bytes = _weight_bytes(model_folder)
    new_tokens = min(NEW_TOKENS, int(config["MAX_MODEL_LEN"]) // 2)
    prompts = make_prompts(model_folder, config, seed, new_tokens)
    lengths = [len(prompt) for prompt in prompts]
    by_length = sorted(range(len(prompts)), key=lambda index: lengths[index])
    block = int(config["BLOCK_SIZE"])
    several = next(index for index in by_length if lengths[index] > 2 * block)
    again = [by_length[0], lengths.index(block), lengths.index(block + 1), several, by_length[-1]]
    reprefill = [(index, count) for index in by_length[4:12:3] for count in (new_tokens // 4, new_tokens - 1)]
    pairs: dict[str, list[Any]] = {
        name: [((own, step), (index, step)) for own, index in enumerate(again) for step in range(AGAIN_TOKENS)]
        for name in ("alone", "chunked", "cached")
    }
    pairs["reprefill"] = [((own, 0), (index, count)) for own, (index, count) in enumerate(reprefill)]
    keep: dict[str, Any] = {name: sorted(own for own, _ in wanted) for name, wanted in pairs.items()}
    keep["mixed"] = _kept_rows(prompts, new_tokens, int(config["VOCAB_SIZE"]), pairs)
    needed = sum(-(-(length + new_tokens) // block) for length in lengths)
    return {
        "package": subject.package,
        "vocab_size": int(config["VOCAB_SIZE"]),
        "weight_dtype": subject.manifest.facts["weight_dtype"],
        "kv_blocks": max(needed + 8, -(-int(config["MAX_MODEL_LEN"]) // block)),
        "threads": len(os.sched_getaffinity(0)) if weight_bytes > _SMALL_BYTES else 1,
        "tie_margin": TIE_MARGIN,
        "prompts": prompts,
        "new_tokens": new_tokens,
        "again": again,
        "again_tokens": AGAIN_TOKENS,
        "cacheable": sum((lengths[index] - 1) // block * block for index in again),
        "reprefill": reprefill,
        "pairs": pairs,
        "keep": keep,
        "longest": max(lengths) + new_tokens,
        "small_chunk": block + block // 2 + 5,
        "layer_prompt": prompts[several][::-1],  # in no cache yet
        "perturb_prompt": prompts[several],
        "noise_prompt": prompts[by_length[-1]],
    }


def _kept_rows(prompts: Sequence[Sequence[int]], new_tokens: int, vocab: int, pairs: Mapping[str, Any]) -> list[Any]:
    """Those that other runs are compared with, and as many others, evenly spread, as there is room for."""
    keys = {key for wanted in pairs.values() for _, key in wanted}
    everything = [(index, step) for index in range(len(prompts)) for step in range(new_tokens)]
    stride = max(1, -(-len(everything) * vocab * 4 // _ROW_BYTES))
    return sorted(keys.union(everything[::stride]))


def compare(plan: Mapping[str, Any], measured: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The reference's comparison, made by a process of its own so that its memory is given back; the probe's notes."""
    with tempfile.TemporaryDirectory(prefix="metainfer-reference-") as scratch:
        plan_file, out_file = Path(scratch, "plan.json"), Path(scratch, "compared.json")
        plan_file.write_text(json.dumps(plan), encoding="utf-8")
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": str(plan["threads"])}
        result = subprocess.run(
            [sys.executable, "-m", "metainfer.gates.reference", str(plan_file), str(measured), str(out_file)],
            env=os.environ | offline,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PROBE_WALL_S,
        )
        if result.returncode != 0:
            raise ReferenceFailedError(f"the comparison failed: {result.stderr.strip()[-600:]}")
        compared: dict[str, Any] = json.loads(out_file.read_bytes())
    return compared, compared.pop("notes")


class ReferenceFailedError(MetainferError):
    """The reference could not be compared with what the probe measured."""


def _weight_bytes(model_folder: Path) -> int:
    from metainfer.checkpoint.tensors import tensor_index

    return sum(info.nbytes for info in tensor_index(model_folder).values())
