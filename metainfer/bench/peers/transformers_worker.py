"""A greedy loop over transformers in a process of its own. Speaks JSON lines: a request in, a line per token out.

`python -m metainfer.bench.peers.transformers_worker --model FOLDER --dtype bf16|fp32 --threads N`
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def main(argv: list[str] | None = None) -> int:
    """Serve requests from standard input until it ends."""
    args = _arguments(argv)
    # Libraries print; the protocol keeps the real standard output to itself.
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.set_num_interop_threads(1)
    model = load(args.model, args.dtype)
    _say(out, ready={"transformers": transformers.__version__, "torch": torch.__version__})
    for line in sys.stdin:
        request = json.loads(line)
        generate(model, request["prompt"], request["max_new_tokens"], lambda token: _say(out, token=token))
        _say(out, done=True)
    return 0


def load(folder: Path, dtype: str) -> Any:
    """The model in its fastest mode here: fused attention, inference only."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype={"bf16": torch.bfloat16, "fp32": torch.float32}[dtype],
        attn_implementation="sdpa",
        local_files_only=True,
    )
    return model.eval()


def generate(model: Any, prompt: list[int], max_new_tokens: int, emit: Callable[[int], None]) -> None:
    """Greedy, with a KV cache, logits of the last position only; no token ends it.

    An own loop, since `generate` also applies penalties of the generation config and costs time of its own.
    """
    import torch

    cache = cache_argument(model)
    with torch.inference_mode():
        tokens = torch.tensor([prompt])
        for _ in range(max_new_tokens):
            logits = model(input_ids=tokens, use_cache=True, logits_to_keep=1, **cache).logits
            tokens = logits[:, -1].argmax(-1, keepdim=True)
            emit(int(tokens))


def cache_argument(model: Any) -> dict[str, Any]:
    """An empty KV cache under the name that this version's `forward` takes it by; it grows in place."""
    from transformers import DynamicCache

    # Newer versions call it `cache`, and warn about the old name.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    return {name: DynamicCache(config=model.config)}


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), required=True)
    parser.add_argument("--threads", type=int, required=True)
    return parser.parse_args(argv)


def _say(out: IO[str], **record: Any) -> None:
    print(json.dumps(record), file=out, flush=True)


if __name__ == "__main__":
    sys.exit(main())
