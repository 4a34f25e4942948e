"""Bounds of the numerics gate. To loosen one is a change of knowledge, and is reviewed as such."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from metainfer.gates.report import GateLog

NOISE_FACTOR = 8.0
"""How many times farther from the reference the engine may be than equally right ways of the reference are."""
LEAST_LOGPROB, LEAST_KL = 2e-5, 1e-9
"""Below this fp32 itself is the cause, whatever the measured noise."""
LAYER_SHARE = 1e-3
"""Largest difference of a layer's output, as a share of its root mean square."""
MOVE_SHARE = 0.02
"""How far apart the two sides may move when a tensor is altered, as a share of the movement."""
MOST_TIED = 0.25
"""Share of prompts whose comparison may end early at a tie."""
_SPARE_BYTES = 32 << 20


def judge(
    log: GateLog, plan: Mapping[str, Any], compared: Mapping[str, Any], notes: Mapping[str, Any], weight_bytes: int
) -> None:
    """Turn the comparison into figures and findings."""
    logprob_bound = max(LEAST_LOGPROB, NOISE_FACTOR * compared["noise"]["logprob"])
    # Distributions whose log-probabilities differ by at most b diverge by at most about b²/2; a bound below that would
    # refuse what the bound on log-probabilities allows.
    kl_bound = max(LEAST_KL, NOISE_FACTOR**2 * compared["noise"]["kl"], logprob_bound**2 / 2)
    log.figure("noise_logprob", compared["noise"]["logprob"])
    log.figure("noise_kl", compared["noise"]["kl"])
    _judge_tokens(log, plan, compared["tokens"], logprob_bound, kl_bound)
    _judge_runs(log, compared["runs"], logprob_bound, kl_bound)
    _judge_layers(log, compared["layers"])
    _judge_perturbed(log, compared["perturbed"], compared["noise"]["logprob"])
    _judge_notes(log, plan, notes, weight_bytes)


def _judge_tokens(
    log: GateLog, plan: Mapping[str, Any], tokens: Mapping[str, Any], logprob_bound: float, kl_bound: float
) -> None:
    prompts = tokens["prompts"]
    ends = [prompt["end"] for prompt in prompts]
    log.figure("prompts", len(prompts))
    log.figure("tokens_compared", sum(prompt["agreed"] for prompt in prompts))
    log.figure("ties", ends.count("tie"))
    for index, prompt in enumerate(prompts):
        where = f"prompt {index} of {prompt['length']} tokens"
        if prompt["end"] == "missing":
            log.find(f"the engine made fewer than {plan['new_tokens']} valid tokens", where)
        elif prompt["end"] == "differs":
            log.find(
                f"token {prompt['step']} is {prompt['engine']}, the reference's {prompt['reference']} is ahead by "
                f"{prompt['gap']:.3g}",
                where,
                gap=prompt["gap"],
            )
    if ends.count("tie") > MOST_TIED * len(ends):
        log.find(f"{ends.count('tie')} of {len(ends)} prompts end at a tie; too little is left to compare")
    for name, bound in (("logprob", logprob_bound), ("kl", kl_bound)):
        found = tokens[name]
        log.figure(f"{name}_max", found["max"])
        log.figure(f"{name}_mean", found["mean"])
        if not found["count"]:
            log.find(f"no token's {name} could be compared")
        _within(log, f"{name} against the reference", found["max"], bound)


def _judge_runs(log: GateLog, runs: Mapping[str, Any], logprob_bound: float, kl_bound: float) -> None:
    """Each other way to the same logits, against the mixed batch."""
    words = {
        "alone": "alone and in a batch differ",
        "chunked": "prompts in chunks and whole prompts differ",
        "cached": "a prefix from the cache and a computed one differ",
        "reprefill": "decoded tokens and the same tokens as a prompt differ",
    }
    for name, found in runs.items():
        log.figure(f"{name}_logprob_max", found["logprob"])
        if found["rows"] < found["wanted"] / 2:
            log.find(f"{words[name]}: only {found['rows']} of {found['wanted']} positions could be compared")
        _within(log, f"{words[name]}: logprob", found["logprob"], logprob_bound)
        _within(log, f"{words[name]}: kl", found["kl"], kl_bound)
    log.figure("self_kl", runs["reprefill"]["kl"])


def _judge_layers(log: GateLog, shares: list[float]) -> None:
    log.figure("layer_share_max", max(shares))
    for layer, share in enumerate(shares):
        if not share <= LAYER_SHARE:
            log.find(f"the output of layer {layer} differs by {share:.3g} of its root mean square", f"layer {layer}")
            return  # all later layers differ too


def _judge_perturbed(log: GateLog, perturbed: list[Mapping[str, Any]], noise: float) -> None:
    log.figure("tensors_altered", len(perturbed))
    if not perturbed:
        log.find("no tensor was altered")
    for entry in perturbed:
        moved, apart = entry["reference"], entry["apart"]
        figures = {"engine": entry["engine"], "reference": moved, "apart": apart}
        if not moved > 20 * noise:
            log.find("altering it does not move the reference, so nothing is known of it", entry["tensor"], **figures)
        elif not apart <= MOVE_SHARE * moved + NOISE_FACTOR * max(noise, LEAST_LOGPROB):
            log.find("altering it moves the engine otherwise than the reference", entry["tensor"], **figures)


def _judge_notes(log: GateLog, plan: Mapping[str, Any], notes: Mapping[str, Any], weight_bytes: int) -> None:
    """What the probe saw beside logits: the cache, the weights in memory, another model's folder."""
    free, total = notes["idle_blocks"]
    if free != total:
        log.find(f"idle, and {total - free} of {total} KV blocks are neither free nor cached")
    log.figure("poisoned_bytes", notes["poisoned_bytes"])
    if not notes["poisoned_bytes"]:
        log.find("no KV cache [layers, blocks, block_size, kv_heads, head_dim] was found below engine.model")
    again = sum(len(plan["prompts"][index]) + plan["again_tokens"] - 1 for index in plan["again"])
    log.figure("tokens_from_cache", again - notes["cached_computed"])
    if notes["cached_computed"] > again - plan["cacheable"] / 2:
        log.find(f"of {plan['cacheable']} cacheable tokens only {again - notes['cached_computed']} came from the cache")
    if "wrong_folder" not in notes:
        log.find("the engine loads a model folder with another digest than its own")
    _judge_memory(log, plan, notes["tensors"], weight_bytes)


def _judge_memory(log: GateLog, plan: Mapping[str, Any], tensors: Mapping[str, int], weight_bytes: int) -> None:
    widths = {"fp32": "float32", "bf16": "bfloat16"}
    wanted = widths[plan["weight_dtype"]]
    matrices = {key: size for key, size in tensors.items() if key.endswith(" 2")}
    log.figure("weight_bytes", sum(matrices.values()))
    for key, size in tensors.items():
        dtype, device, rank = key.split()
        if device != "cpu":
            log.find(f"{size:,} bytes of {dtype} lie on device {device}", "after load")
        if rank == "2" and dtype != wanted and size > _SPARE_BYTES:
            log.find(f"{size:,} bytes of matrices are {dtype}, not {wanted}", "after load")
    # A matrix belongs in the weights' own dtype; tables of rotary angles are all else that may be two-dimensional.
    if wanted == "bfloat16" and matrices.get("bfloat16 cpu 2", 0) < 0.9 * weight_bytes:
        log.find(
            f"{matrices.get('bfloat16 cpu 2', 0):,} bytes of matrices are bfloat16, of {weight_bytes:,} in the file",
            "after load",
        )
    if not math.isfinite(weight_bytes) or sum(matrices.values()) > 2.2 * weight_bytes + _SPARE_BYTES:
        log.find(
            f"the engine holds {sum(matrices.values()):,} bytes of matrices, the file {weight_bytes:,}", "after load"
        )


def _within(log: GateLog, what: str, value: float, bound: float) -> None:
    if not value <= bound:  # so that NaN is outside too
        log.find(f"{what}: {value:.3g}, more than {bound:.3g}", measured=value, bound=bound)
