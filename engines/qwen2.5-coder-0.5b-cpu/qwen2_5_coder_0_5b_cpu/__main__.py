"""The command line of the engine."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from types import FrameType
from typing import TYPE_CHECKING

from . import config

if TYPE_CHECKING:
    from .engine import LLMEngine


def main(argv: list[str] | None = None) -> int:
    """Run one command: 0 is success, 2 a wrong argument, model or setting, named on stderr."""
    args = _parse(argv)
    try:
        args.run(args)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=config.ENGINE_NAME)
    commands = parser.add_subparsers(required=True, metavar="fetch|serve|generate|bench")
    fetch = commands.add_parser("fetch", help="check a model folder and copy it into the cache")
    fetch.set_defaults(run=_fetch)
    fetch.add_argument("--from", type=Path, required=True, dest="source", metavar="DIR")

    engine = argparse.ArgumentParser(add_help=False)
    engine.add_argument("--model", type=Path, default=_cached_model(), help="default: %(default)s")
    engine.add_argument("--threads", type=int, help="default: one per core")
    engine.add_argument("--max-concurrency", type=int, default=config.MAX_CONCURRENCY)
    engine.add_argument("--kv-blocks", type=int, default=config.NUM_KV_BLOCKS)
    serve = commands.add_parser("serve", parents=[engine], help="answer over HTTP")
    serve.set_defaults(run=_serve)
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--api-key", default=os.environ.get("ENGINE_API_KEY"), help="or $ENGINE_API_KEY")
    generate = commands.add_parser("generate", parents=[engine], help="answer one prompt")
    generate.set_defaults(run=_generate)
    generate.add_argument("prompt")
    generate.add_argument("--max-tokens", type=int, default=256)
    generate.add_argument("--temperature", type=float, default=0.0)
    generate.add_argument("--raw", action="store_true", help="leave the chat template out")
    bench = commands.add_parser("bench", parents=[engine], help="measure; the last line is JSON")
    bench.set_defaults(run=_bench)
    bench.add_argument("--requests", type=int, default=4, help="sent all at once")
    bench.add_argument("--prompt-tokens", type=int, default=128)
    bench.add_argument("--output-tokens", type=int, default=64)
    return parser.parse_args(argv)


def _cached_model() -> Path:
    models = os.environ.get("METAINFER_MODELS") or Path.home() / ".cache/metainfer/models"
    return Path(models, config.MODEL_DIGEST.removeprefix("sha256:"))


def _load(args: argparse.Namespace) -> LLMEngine:
    from .engine import LLMEngine

    if not args.model.is_dir():
        raise ValueError(f"{args.model}: no model there; use --model DIR, or fetch --from DIR first")
    return LLMEngine(
        args.model,
        num_kv_blocks=args.kv_blocks,
        max_concurrency=args.max_concurrency,
        num_threads=args.threads,
    )


def _fetch(args: argparse.Namespace) -> None:
    """Copy a model folder into the cache; it appears there whole and checked, or not at all."""
    from .weights import load_weights

    if not any(args.source.glob("*.safetensors")):
        raise ValueError(f"{args.source}: no model there; a model folder holds *.safetensors")
    load_weights(args.source, config.MODEL_DIGEST)  # before anything is copied
    target = _cached_model()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
        copy = Path(scratch, "model")
        copy.mkdir()
        for file in args.source.iterdir():  # what the digest covers, and nothing below
            if file.is_file() and not file.name.startswith("."):
                shutil.copyfile(file, copy / file.name)
        load_weights(copy, config.MODEL_DIGEST)
        if not target.exists():
            copy.rename(target)
    print(target)


def _serve(args: argparse.Namespace) -> None:
    import uvicorn

    from .server import create_app

    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    socket.create_server((args.host, args.port), family=family).close()  # a port in use is told before the model loads
    # In a thread that ends: OpenMP counts the team of every thread alive, and with more of its threads than cores it
    # no longer spins between kernels, which would cost a tenth of each token's time.
    with ThreadPoolExecutor(max_workers=1) as loader:
        engine = loader.submit(_load, args).result()
    app = create_app(engine, api_key=args.api_key)
    service = app.state.service

    class DrainingServer(uvicorn.Server):
        """At the first signal what runs may end and what is new gets 503; the second ends all."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            self.should_exit = self.force_exit = service.draining
            service.draining = True

        async def on_tick(self, counter: int) -> bool:
            self.should_exit |= service.draining and service.num_open == 0
            return await super().on_tick(counter)

    # Those who only hold a connection open, or never finish a request, get five seconds.
    DrainingServer(uvicorn.Config(app, host=args.host, port=args.port, timeout_graceful_shutdown=5)).run()


def _generate(args: argparse.Namespace) -> None:
    from .sequence import SamplingParams

    engine = _load(args)
    prompt = engine.codec.encode(args.prompt)
    if not args.raw:
        prompt = engine.codec.encode_chat([{"role": "user", "content": args.prompt}])
    room = max(1, config.MAX_MODEL_LEN - len(prompt))
    engine.add_request(prompt, SamplingParams(min(args.max_tokens, room), args.temperature))
    while engine.has_work:
        for output in engine.step():
            print(output.text, end="", flush=True)
    print()


def _bench(args: argparse.Namespace) -> None:
    """Random prompts, sent all at once and answered greedily to a fixed length."""
    from .sequence import SamplingParams

    engine = _load(args)
    params = SamplingParams(args.output_tokens, temperature=0.0, ignore_eos=True)
    rng = random.Random(0)
    times_s: dict[int, list[float]] = {}  # of each request's tokens
    began_s = time.perf_counter()
    for _ in range(args.requests):
        prompt = [rng.randrange(config.VOCAB_SIZE) for _ in range(args.prompt_tokens)]
        times_s[engine.add_request(prompt, params).seq_id] = []
    while engine.has_work:
        for output in engine.step():
            times_s[output.seq.seq_id].append(time.perf_counter() - began_s)
    wall_s = time.perf_counter() - began_s
    gaps = [(own[-1] - own[0]) / (len(own) - 1) for own in times_s.values() if len(own) > 1]
    figures = {
        "ttft_ms": round(1000 * mean(own[0] for own in times_s.values()), 3),
        "tpot_ms": round(1000 * mean(gaps), 3) if gaps else None,
        "output_tokens_per_s": round(args.requests * args.output_tokens / wall_s, 3),
    }
    print("TTFT is the time of a request's first token, TPOT that of each later one; both are means")
    print(*(f"{name:20} {figure}" for name, figure in figures.items()), sep="\n")
    asked = {"requests": args.requests, "prompt_tokens": args.prompt_tokens}
    print(json.dumps(asked | {"output_tokens": args.output_tokens, **figures}))


if __name__ == "__main__":
    sys.exit(main())
