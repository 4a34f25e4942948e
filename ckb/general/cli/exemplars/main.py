"""The command line of the engine."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from . import config
from .facts import S

if TYPE_CHECKING:
    from .units import LLMEngine


def main(argv: list[str] | None = None) -> int:
    """Run one command; 0 is success, 2 a wrong argument, model or setting (said on stderr)."""
    args = _parser().parse_args(argv)
    try:
        args.run(args)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=config.ENGINE_NAME)
    commands = parser.add_subparsers(required=True, metavar="fetch|serve|generate|bench")
    engine = argparse.ArgumentParser(add_help=False)
    engine.add_argument("--model", type=Path, default=_cached_model(), help="default: %(default)s")
    engine.add_argument("--threads", type=int, help="default: one per core")
    engine.add_argument("--kv-blocks", type=int, default=config.NUM_KV_BLOCKS)
    engine.add_argument("--max-concurrency", type=int, default=config.MAX_CONCURRENCY)

    fetch = commands.add_parser("fetch", help="check a model folder and copy it into the cache")
    fetch.add_argument("--from", type=Path, required=True, dest="source", metavar="DIR")
    fetch.set_defaults(run=_fetch)

    serve = commands.add_parser("serve", parents=[engine], help="answer over HTTP")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--api-key", default=os.environ.get("ENGINE_API_KEY"), help="or $ENGINE_API_KEY")
    serve.set_defaults(run=_serve)

    generate = commands.add_parser("generate", parents=[engine], help="answer one prompt")
    generate.add_argument("prompt")
    generate.add_argument("--max-tokens", type=int, default=256)
    generate.add_argument("--temperature", type=float, default=0.0)
    if S.chat:
        generate.add_argument("--raw", action="store_true", help="leave the chat template out")
    generate.set_defaults(run=_generate)

    bench = commands.add_parser("bench", parents=[engine], help="measure; the last line is JSON")
    bench.add_argument("--requests", type=int, default=4, help="sent all at once")
    bench.add_argument("--prompt-tokens", type=int, default=128)
    bench.add_argument("--output-tokens", type=int, default=64)
    bench.set_defaults(run=_bench)
    return parser


def _cached_model() -> Path:
    models = os.environ.get("METAINFER_MODELS", Path.home() / ".cache/metainfer/models")
    return Path(models) / config.MODEL_DIGEST.removeprefix("sha256:")


def _load(args: argparse.Namespace) -> LLMEngine:
    from .units import LLMEngine  # brings torch, which `--help` can do without

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
    from .units import load_weights

    target = _cached_model()
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
            copy = Path(scratch, "model")
            shutil.copytree(args.source, copy, ignore=shutil.ignore_patterns(".*"))
            load_weights(copy, config.MODEL_DIGEST)
            copy.rename(target)
    else:
        load_weights(target, config.MODEL_DIGEST)
    print(target)


def _serve(args: argparse.Namespace) -> None:
    import uvicorn

    from .units import create_app

    app = create_app(_load(args), api_key=args.api_key)
    service = app.state.service

    class DrainingServer(uvicorn.Server):
        """After the first signal what runs may end and what is new gets 503; a second ends all."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            self.should_exit = self.force_exit = service.draining
            service.draining = True

        async def on_tick(self, counter: int) -> bool:
            self.should_exit |= service.draining and not service.open_calls
            return await super().on_tick(counter)

    DrainingServer(uvicorn.Config(app, host=args.host, port=args.port)).run()


def _generate(args: argparse.Namespace) -> None:
    from .units import SamplingParams

    engine = _load(args)
    if S.chat:
        messages = [{"role": "user", "content": args.prompt}]
        prompt = engine.codec.encode(args.prompt) if args.raw else engine.codec.encode_chat(messages)
    else:
        prompt = engine.codec.encode(args.prompt)
    room = max(1, config.MAX_MODEL_LEN - len(prompt))
    engine.add_request(prompt, SamplingParams(min(args.max_tokens, room), args.temperature))
    while engine.has_work:
        for output in engine.step():
            print(output.text, end="", flush=True)
    print()


def _bench(args: argparse.Namespace) -> None:
    """Random prompts sent all at once; each request's first token and time per later token."""
    from .units import SamplingParams

    engine = _load(args)
    params = SamplingParams(args.output_tokens, temperature=0.0, ignore_eos=True)
    rng = random.Random(0)
    started_s = time.perf_counter()
    times_s: dict[int, list[float]] = {}
    for _ in range(args.requests):
        prompt = [rng.randrange(config.VOCAB_SIZE) for _ in range(args.prompt_tokens)]
        times_s[engine.add_request(prompt, params).seq_id] = []
    while engine.has_work:
        outputs = engine.step()
        for output in outputs:
            times_s[output.seq.seq_id].append(time.perf_counter() - started_s)
    wall_s = time.perf_counter() - started_s
    figures = {
        "requests": args.requests,
        "prompt_tokens": args.prompt_tokens,
        "output_tokens": args.output_tokens,
        "ttft_ms": 1e3 * statistics.mean(times[0] for times in times_s.values()),
        "tpot_ms": 1e3
        * statistics.mean(
            (times[-1] - times[0]) / max(1, len(times) - 1) for times in times_s.values()
        ),
        "output_tokens_per_s": args.requests * args.output_tokens / wall_s,
    }
    print("TTFT = first token - arrival; TPOT = (last - first token) / (tokens - 1); means")
    for name, value in figures.items():
        print(f"{name:>20} {value:10.2f}")
    print(json.dumps(figures))


if __name__ == "__main__":
    sys.exit(main())
