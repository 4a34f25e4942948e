"""What transformers says of the tokens that an engine made: fp32 arithmetic on the same folder, outside of any sandbox.

    python -m metainfer.gates.reference PLAN MEASURED OUT

Runs as a process of its own so that its memory is given back. MEASURED is the probe's file and comes from code that
nobody has reviewed: it is read as plain arrays and its shapes are checked. OUT becomes JSON.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Reference:
    """The model of one folder, teacher-forced."""

    def __init__(self, folder: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        torch.set_num_threads(threads)
        self.torch = torch
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True, trust_remote_code=False
        )
        self.model.requires_grad_(False).train(False)
        # Newer versions of transformers rename the argument.
        arguments = inspect.signature(self.model.forward).parameters
        self.cache_name = "cache" if "cache" in arguments else "past_key_values"

    def logits(self, tokens: Sequence[int], keep: int) -> Any:
        """Logits [keep, vocab] fp32 of the last `keep` positions."""
        ids = self.torch.tensor([list(tokens)])
        with self.torch.inference_mode():
            return self.model(input_ids=ids, use_cache=False, logits_to_keep=keep).logits[0]

    def layers(self, tokens: Sequence[int]) -> Any:
        """Output of every decoder layer, [layers, tokens, hidden]."""
        outputs: list[Any] = []

        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            outputs.append((output[0] if isinstance(output, tuple) else output).reshape(len(tokens), -1).clone())

        handles = [layer.register_forward_hook(hook) for layer in self.model.model.layers]
        try:
            self.logits(tokens, 1)
        finally:
            for handle in handles:
                handle.remove()
        return self.torch.stack(outputs)

    def noise(self, tokens: Sequence[int], keep: int) -> dict[str, float]:
        """How far equally right ways of computing the same thing lie apart: both attentions, padded, token by token."""
        alone = self.logits(tokens, keep)
        found = [distance(alone, self._padded(tokens, keep)), distance(alone, self._pieces(tokens, keep))]
        self.model.set_attn_implementation("eager")
        try:
            found.append(distance(alone, self.logits(tokens, keep)))
        finally:
            self.model.set_attn_implementation("sdpa")
        return {name: max(one[name] for one in found) for name in found[0]}

    def _padded(self, tokens: Sequence[int], keep: int) -> Any:
        """As one row of a padded batch."""
        other = list(tokens)[: max(1, len(tokens) // 2)]
        rows = [list(tokens), [0] * (len(tokens) - len(other)) + other]
        mask = [[1] * len(tokens), [0] * (len(tokens) - len(other)) + [1] * len(other)]
        with self.torch.inference_mode():
            result = self.model(
                input_ids=self.torch.tensor(rows),
                attention_mask=self.torch.tensor(mask),
                use_cache=False,
                logits_to_keep=keep,
            )
        return result.logits[0]

    def _pieces(self, tokens: Sequence[int], keep: int) -> Any:
        """The last `keep` tokens decoded one by one over a cache."""
        ids = self.torch.tensor([list(tokens)])
        rows = []
        with self.torch.inference_mode():
            first = self.model(input_ids=ids[:, : len(tokens) - keep + 1], use_cache=True, logits_to_keep=1)
            cache = {self.cache_name: first.past_key_values}
            rows.append(first.logits[0, -1])
            for at in range(len(tokens) - keep + 1, len(tokens)):
                step = self.model(input_ids=ids[:, at : at + 1], use_cache=True, **cache)
                rows.append(step.logits[0, -1])
        return self.torch.stack(rows)

    def altered(self, entries: Sequence[Mapping[str, str]], prompt: Sequence[int]) -> Array:
        """Last logits on the original and with each entry's tensor in its place, [1 + entries, vocab]."""
        rows = [self.logits(prompt, 1)[0].clone()]
        parameters = dict(self.model.named_parameters())
        for entry in entries:
            parameter = parameters[entry["tensor"]]
            original = parameter.detach().clone()
            with self.torch.no_grad():
                parameter.copy_(_tensor(Path(entry["folder"]), entry["tensor"]).float())
                rows.append(self.logits(prompt, 1)[0].clone())
                parameter.copy_(original)
        return np.asarray(self.torch.stack(rows).numpy())


def distance(p: Any, q: Any) -> dict[str, float]:
    """Largest |difference| of log-probability, and largest KL(p ‖ q) in nats, over rows of logits."""
    log_p, log_q = p.double().log_softmax(-1), q.double().log_softmax(-1)
    return {"logprob": float((log_p - log_q).abs().max()), "kl": float(_kl(log_p, log_q).max())}


def _kl(log_p: Any, log_q: Any) -> Any:
    return (log_p.exp() * (log_p - log_q)).sum(-1).clamp(min=0)


def _tensor(folder: Path, name: str) -> Any:
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if name in file.keys():  # noqa: SIM118
                return file.get_tensor(name)
    raise KeyError(name)


def judge_tokens(reference: Reference, plan: Mapping[str, Any], measured: Mapping[str, Array]) -> dict[str, Any]:
    """Teacher-force every prompt with the engine's tokens: per prompt how far they agree, and where not."""
    torch, tie = reference.torch, plan["tie_margin"]
    rows = {
        tuple(key): row for key, row in zip(measured["mixed.row_keys"].tolist(), measured["mixed.rows"], strict=True)
    }
    prompts: list[dict[str, Any]] = []
    differences: list[float] = []
    kls: list[float] = []
    worst_row = 0.0
    for index, prompt in enumerate(plan["prompts"]):
        tokens = measured["mixed.tokens"][index].tolist()
        verdict: dict[str, Any] = {"length": len(prompt), "agreed": 0, "end": "complete"}
        prompts.append(verdict)
        if min(tokens) < 0 or max(tokens) >= plan["vocab_size"]:
            verdict["end"] = "missing"
            continue
        logits = reference.logits([*prompt, *tokens[:-1]], len(tokens))
        logprobs = logits.double().log_softmax(-1)
        for step, token in enumerate(tokens):
            best = int(logits[step].argmax())
            if token != best:
                gap = float(logits[step, best] - logits[step, token])
                verdict |= {"end": "tie" if gap < tie else "differs", "step": step, "gap": gap}
                verdict |= {"engine": token, "reference": best}
                break
            verdict["agreed"] += 1
            differences.append(abs(float(logprobs[step, token]) - float(measured["mixed.logprobs"][index, step])))
            if (index, step) in rows:
                own = torch.from_numpy(rows[index, step]).double().log_softmax(-1)
                kls.append(float(_kl(logprobs[step], own)))
                worst_row = max(worst_row, float((logprobs[step] - own).abs().max()))
    return {"prompts": prompts, "logprob": _summary(differences), "kl": _summary(kls), "row_max": worst_row}


def _summary(values: Sequence[float]) -> dict[str, float]:
    """NaN stays NaN, so that it is seen."""
    if not values:
        return {"count": 0, "max": 0.0, "mean": 0.0}
    array = np.asarray(values)
    return {"count": len(values), "max": float(array.max()), "mean": float(array.mean())}


def judge_layers(reference: Reference, plan: Mapping[str, Any], measured: Mapping[str, Array]) -> list[float]:
    """Per layer the largest difference of its output, as a share of the output's root mean square."""
    own = reference.torch.from_numpy(measured["layers"])
    theirs = reference.layers(plan["layer_prompt"])
    if own.shape != theirs.shape:
        raise ValueError(f"the engine's layers give {[*own.shape]}, the reference's {[*theirs.shape]}")
    scale = theirs.square().mean(dim=(1, 2)).sqrt()
    return [float(value) for value in (own - theirs).abs().amax(dim=(1, 2)) / scale]


def judge_perturbed(
    reference: Reference, plan: Mapping[str, Any], measured: Mapping[str, Array]
) -> list[dict[str, Any]]:
    """Per altered tensor: how far it moved each side's logits, and how far apart the two movements are."""
    own = measured["perturbed"].astype(np.float64)
    theirs = reference.altered(plan["perturbed"], plan["perturb_prompt"]).astype(np.float64)
    if own.shape != theirs.shape:
        raise ValueError(f"the engine gave logits {own.shape}, the reference {theirs.shape}")
    return [
        {
            "tensor": entry["tensor"],
            "engine": float(np.abs(own[i] - own[0]).max()),
            "reference": float(np.abs(theirs[i] - theirs[0]).max()),
            "apart": float(np.abs((own[i] - own[0]) - (theirs[i] - theirs[0])).max()),
        }
        for i, entry in enumerate(plan["perturbed"], start=1)
    ]


def compare_runs(plan: Mapping[str, Any], measured: Mapping[str, Array]) -> dict[str, dict[str, float]]:
    """The engine against itself: each other way to the same logits, as distances from the mixed run's rows."""
    import torch

    base = {
        tuple(key): row for key, row in zip(measured["mixed.row_keys"].tolist(), measured["mixed.rows"], strict=True)
    }
    found: dict[str, dict[str, float]] = {}
    for name, pairs in plan["pairs"].items():
        keys = [tuple(key) for key in measured[f"{name}.row_keys"].tolist()]
        rows = dict(zip(keys, measured[f"{name}.rows"], strict=True))
        count, worst = 0, {"logprob": 0.0, "kl": 0.0}
        for (own_prompt, own_step), (prompt, step) in pairs:
            if not _same_history(measured, name, own_prompt, own_step, prompt, step, plan):
                continue
            one = distance(torch.from_numpy(base[prompt, step]), torch.from_numpy(rows[own_prompt, own_step]))
            worst = {key: _worse(worst[key], one[key]) for key in worst}
            count += 1
        found[name] = {"rows": count, "wanted": len(pairs), **worst}
    return found


def _worse(a: float, b: float) -> float:
    return b if b != b else max(a, b)


def _same_history(
    measured: Mapping[str, Array], name: str, own: int, own_step: int, prompt: int, step: int, plan: Mapping[str, Any]
) -> bool:
    """Whether both runs had made the same tokens before this one; after a tie they are free to differ."""
    if name == "reprefill":
        return True
    before = measured[f"{name}.tokens"][own, :own_step]
    return bool((before == measured["mixed.tokens"][prompt, :step]).all())


def _check_shapes(plan: Mapping[str, Any], measured: Mapping[str, Array]) -> None:
    prompts, new, vocab = len(plan["prompts"]), plan["new_tokens"], plan["vocab_size"]
    for name, runs in {"mixed": prompts, **dict.fromkeys(plan["pairs"])}.items():
        rows, keys = measured[f"{name}.rows"], measured[f"{name}.row_keys"]
        wanted = sorted(map(tuple, plan["keep"][name]))
        if [tuple(key) for key in keys.tolist()] != wanted or rows.shape != (len(wanted), vocab):
            raise ValueError(f"the {name} run lacks rows of logits: {rows.shape}, wanted {(len(wanted), vocab)}")
        if runs and measured[f"{name}.tokens"].shape != (runs, new):
            raise ValueError(f"the {name} run made tokens of shape {measured[f'{name}.tokens'].shape}")


def compare_file(reference: Reference, plan: Mapping[str, Any], measured_file: Path) -> dict[str, Any]:
    """All that can be said of the probe's file. ValueError or KeyError if it is not what the plan asks for."""
    with np.load(measured_file, allow_pickle=False) as file:
        measured = {name: file[name] for name in file.files}
    _check_shapes(plan, measured)
    noise_prompt = plan["noise_prompt"]
    return {
        "noise": reference.noise(noise_prompt, min(8, len(noise_prompt))),
        "tokens": judge_tokens(reference, plan, measured),
        "layers": judge_layers(reference, plan, measured),
        "perturbed": judge_perturbed(reference, plan, measured),
        "runs": compare_runs(plan, measured),
        "notes": json.loads(measured["notes"].tobytes()),
    }


def _run(plan_file: str, measured_file: str, out_file: str) -> None:
    plan = json.loads(Path(plan_file).read_bytes())
    result = compare_file(Reference(plan["model"], plan["threads"]), plan, Path(measured_file))
    # JSON has no NaN; Python's reader and writer agree on one, and this file is read by nobody else.
    Path(out_file).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2], sys.argv[3])
