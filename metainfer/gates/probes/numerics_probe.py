"""Runs an engine on given prompts and writes down what its model computes. Judging is done elsewhere.

    python -m metainfer.gates.probes.numerics_probe PLAN OUT

PLAN is JSON (see `metainfer.gates.numerics`), OUT becomes a .npz file. Logits are taken where the engine's forward
returns them, so that a sampler or a server cannot dress them up.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Recorder:
    """Steps one engine, and keeps the logits of every token it makes."""

    def __init__(self, engine: Any, sampling_params: Any) -> None:
        self.engine = engine
        self._params = sampling_params
        self.computed = 0
        """Tokens that went through the model."""
        self._rows: Any = None
        forward = engine.model.forward

        def recording(batch: Any) -> Any:
            logits = forward(batch)
            self.computed += int(batch.token_ids.numel())
            self._rows = logits.detach().float().clone()
            return logits

        engine.model.forward = recording

    def close(self) -> None:
        """Let go of the engine: what watches it also holds it, and a model is too large to wait for the collector."""
        for part in (self.engine.model, *self.engine.model.layers):
            vars(part).pop("forward", None)
        del self.engine, self._rows
        gc.collect()

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int, keep: set[tuple[int, int]]) -> Run:
        """Answer all prompts together, greedily. `keep`: (prompt, step) whose whole rows are wanted."""
        params = self._params(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
        place = {self.engine.add_request(list(prompt), params).seq_id: i for i, prompt in enumerate(prompts)}
        run = Run(len(prompts), new_tokens)
        while self.engine.has_work:
            outputs = self.engine.step()
            if outputs and len(self._rows) != len(outputs):
                raise RuntimeError(f"the model gave {len(self._rows)} rows of logits for {len(outputs)} tokens")
            for row, output in zip(self._rows if outputs else (), outputs, strict=True):
                run.add(place[output.seq.seq_id], int(output.token.token_id), row, keep)
        return run


class Run:
    """What one run made: per prompt its tokens and their log-probabilities, and the rows that were asked for."""

    def __init__(self, prompts: int, new_tokens: int) -> None:
        self.tokens = np.full((prompts, new_tokens), -1, dtype=np.int64)
        self.best = np.full((prompts, new_tokens), -1, dtype=np.int64)
        self.logprobs = np.full((prompts, new_tokens), np.nan, dtype=np.float64)
        self.rows: dict[tuple[int, int], Array] = {}
        self._counts = [0] * prompts

    def add(self, prompt: int, token: int, row: Any, keep: set[tuple[int, int]]) -> None:
        step = self._counts[prompt]
        self._counts[prompt] += 1
        self.tokens[prompt, step] = token
        self.best[prompt, step] = int(row.argmax())
        self.logprobs[prompt, step] = float(row.double().log_softmax(-1)[token])
        if (prompt, step) in keep:
            self.rows[prompt, step] = row.numpy()

    def arrays(self, name: str) -> dict[str, Array]:
        keys = sorted(self.rows)
        return {
            f"{name}.tokens": self.tokens,
            f"{name}.best": self.best,
            f"{name}.logprobs": self.logprobs,
            f"{name}.row_keys": np.array(keys, dtype=np.int64).reshape(-1, 2),
            f"{name}.rows": np.stack([self.rows[key] for key in keys]) if keys else np.zeros((0, 0), np.float32),
        }


class Probe:
    """The plan's runs, one after the other, each on an engine of its own."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.module = importlib.import_module(f"{plan['package']}.engine")
        self.params = importlib.import_module(f"{plan['package']}.sequence").SamplingParams
        found = Path(self.module.__file__ or "").resolve()
        if not found.is_relative_to(Path(plan["engine"]).resolve()):
            raise RuntimeError(f"{self.module.__name__} was imported from {found}, not from the engine's folder")
        self.out: dict[str, Array] = {}
        self.notes: dict[str, Any] = {}

    def load(self, folder: str = "", digest: str = "", **options: Any) -> Any:
        if digest:
            options["expected_digest"] = digest
        options.setdefault("num_kv_blocks", self.plan["kv_blocks"])
        return self.module.LLMEngine(Path(folder or self.plan["model"]), num_threads=self.plan["threads"], **options)

    def keep(self, run: str) -> set[tuple[int, int]]:
        return {(prompt, step) for prompt, step in self.plan["keep"][run]}

    def main(self) -> None:
        self.mixed()
        self.alone()
        self.chunked()
        self.perturbed()

    def mixed(self) -> None:
        """All prompts at once, then some of them again, now that their blocks are cached."""
        engine = self.load()
        self.notes["tensors"] = audit(engine.model)
        self.notes["poisoned_bytes"] = poison(engine.model, self.plan["kv_blocks"])
        recorder = Recorder(engine, self.params)
        prompts = self.plan["prompts"]
        run = recorder.run(prompts, self.plan["new_tokens"], self.keep("mixed"))
        self.out |= run.arrays("mixed")
        blocks = engine.block_manager
        self.notes["idle_blocks"] = [blocks.num_free + blocks.num_cached, self.plan["kv_blocks"]]
        again = [prompts[index] for index in self.plan["again"]]
        recorder.computed = 0
        self.out |= recorder.run(again, self.plan["again_tokens"], self.keep("cached")).arrays("cached")
        self.notes["cached_computed"] = recorder.computed
        recorder.close()

    def alone(self) -> None:
        """One at a time, each prompt whole; then decoded tokens as part of a prompt, and every layer's output."""
        engine = self.load(max_concurrency=1, prefill_chunk=self.plan["longest"])
        poison(engine.model, self.plan["kv_blocks"])
        recorder = Recorder(engine, self.params)
        again = [self.plan["prompts"][index] for index in self.plan["again"]]
        self.out |= recorder.run(again, self.plan["again_tokens"], self.keep("alone")).arrays("alone")
        tokens = self.out["mixed.tokens"]
        longer = [
            self.plan["prompts"][index] + [int(token) for token in tokens[index, :count]]
            for index, count in self.plan["reprefill"]
        ]
        self.out |= recorder.run(longer, 1, self.keep("reprefill")).arrays("reprefill")
        self.layers(engine, recorder)
        recorder.close()

    def layers(self, engine: Any, recorder: Recorder) -> None:
        outputs: list[Array] = []

        def watch(layer: Any) -> None:
            forward = layer.forward

            def watching(*args: Any, **kwargs: Any) -> Any:
                result = forward(*args, **kwargs)
                outputs.append(result.detach().float().numpy().copy())
                return result

            layer.forward = watching

        for layer in engine.model.layers:
            watch(layer)
        recorder.run([self.plan["layer_prompt"]], 1, set())
        self.out["layers"] = np.stack(outputs)

    def chunked(self) -> None:
        """Prompts in pieces that fit no block."""
        engine = self.load(max_concurrency=2, prefill_chunk=self.plan["small_chunk"])
        poison(engine.model, self.plan["kv_blocks"])
        again = [self.plan["prompts"][index] for index in self.plan["again"]]
        recorder = Recorder(engine, self.params)
        self.out |= recorder.run(again, self.plan["again_tokens"], self.keep("chunked")).arrays("chunked")
        recorder.close()

    def perturbed(self) -> None:
        """The same prompt on each altered model folder, after the original."""
        rows = []
        for entry in [{"folder": self.plan["model"], "digest": ""}, *self.plan["perturbed"]]:
            recorder = Recorder(self.load(entry["folder"], entry["digest"], max_concurrency=1), self.params)
            rows.append(recorder.run([self.plan["perturb_prompt"]], 1, {(0, 0)}).rows[0, 0])
            recorder.close()
        self.out["perturbed"] = np.stack(rows)
        if self.plan["perturbed"]:
            try:
                self.load(self.plan["perturbed"][0]["folder"])
            except ValueError as error:
                self.notes["wrong_folder"] = str(error)[:300]


def audit(model: Any) -> dict[str, Any]:
    """Bytes of the distinct tensors reachable from `model`, by `dtype device rank`."""
    found: dict[str, int] = {}
    for tensor in tensors_of(model):
        key = f"{str(tensor.dtype).removeprefix('torch.')} {tensor.device.type} {tensor.dim()}"
        found[key] = found.get(key, 0) + tensor.numel() * tensor.element_size()
    return found


def tensors_of(root: Any) -> list[Any]:
    """Every distinct tensor that `root` holds, through attributes and containers."""
    import torch

    seen: set[int] = set()
    storages: set[tuple[int, int]] = set()
    found = []
    stack = [root]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, str | bytes | int | float | type(None) | type):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            place = (item.data_ptr(), item.numel())
            if place not in storages:
                storages.add(place)
                found.append(item)
        elif isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, list | tuple | set):
            stack += item
        elif type(item).__module__.startswith(type(root).__module__.partition(".")[0]):
            stack += vars(item).values() if hasattr(item, "__dict__") else ()
            stack += [getattr(item, name, None) for name in getattr(type(item), "__slots__", ())]
    return found


def poison(model: Any, kv_blocks: int) -> int:
    """Fill the KV cache with NaN: whoever reads a slot that was never written shows it. Returns the bytes."""
    filled = 0
    for tensor in tensors_of(model):
        if tensor.dim() == 5 and tensor.shape[1] == kv_blocks:
            tensor.fill_(float("nan"))
            filled += tensor.numel() * tensor.element_size()
    return filled


def _run(plan_file: str, out_file: str) -> None:
    plan = json.loads(Path(plan_file).read_bytes())
    sys.path.insert(0, plan["engine"])
    probe = Probe(plan)
    probe.main()
    notes = np.frombuffer(json.dumps(probe.notes).encode(), dtype=np.uint8)
    np.savez(out_file, notes=notes, **probe.out)  # type: ignore[arg-type]


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2])
