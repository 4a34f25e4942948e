"""The command line."""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from .config import ENGINE_NAME, MAX_CONCURRENCY, MAX_MODEL_LEN, MODEL_DIGEST, NUM_KV_BLOCKS, VOCAB_SIZE

if TYPE_CHECKING:
    from .units import LLMEngine

_GRACE_S = 5
_LOOK_EVERY_S = 0.05


def main(argv: list[str] | None = None) -> int:
    """Run one command; 0 if it is done, 2 if it could not be."""
    args = _parser().parse_args(argv)
    commands = {"fetch": _fetch, "serve": _serve, "generate": _generate, "bench": _bench}
    try:
        commands[args.command](args)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=ENGINE_NAME, description="An inference engine for one deployment.")
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="copy a model folder into the cache, checked")
    fetch.add_argument("--from", dest="source", type=Path, required=True, metavar="DIR")
    engine = argparse.ArgumentParser(add_help=False)
    engine.add_argument("--model", type=Path, metavar="DIR", help="the model folder; by default that of the cache")
    engine.add_argument("--threads", type=int)
    engine.add_argument("--max-concurrency", type=int, default=MAX_CONCURRENCY)
    engine.add_argument("--kv-blocks", type=int, default=NUM_KV_BLOCKS)
    serve = commands.add_parser("serve", help="serve over HTTP", parents=[engine])
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--api-key", metavar="KEY", help="by default $ENGINE_API_KEY; without one everybody is served")
    generate = commands.add_parser("generate", help="answer one prompt", parents=[engine])
    generate.add_argument("prompt")
    generate.add_argument("--max-tokens", type=int, default=256)
    generate.add_argument("--temperature", type=float, default=0.0)
    generate.add_argument("--raw", action="store_true", help="no chat template around the prompt")
    bench = commands.add_parser("bench", help="measure random prompts, all at once", parents=[engine])
    bench.add_argument("--requests", type=int, default=4)
    bench.add_argument("--prompt-tokens", type=int, default=128)
    bench.add_argument("--output-tokens", type=int, default=64)
    return parser


def _cached_folder() -> Path:
    models = os.environ.get("METAINFER_MODELS") or Path.home() / ".cache" / "metainfer" / "models"
    return Path(models, MODEL_DIGEST.removeprefix("sha256:"))


def _load(args: argparse.Namespace) -> "LLMEngine":
    from .units import LLMEngine

    folder = args.model or _cached_folder()
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there; fetch the model, or say --model DIR")
    return LLMEngine(
        folder,
        num_kv_blocks=args.kv_blocks,
        max_concurrency=args.max_concurrency,
        num_threads=args.threads,
    )


def _fetch(args: argparse.Namespace) -> None:
    from .units import load_weights

    source: Path = args.source
    if not any(source.glob("*.safetensors")):
        raise ValueError(f"{source} is no model folder: there is no *.safetensors in it")
    load_weights(source, MODEL_DIGEST)
    place = _cached_folder()
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=place.parent) as aside:
            copy = Path(aside, place.name)
            copy.mkdir()
            for path in source.iterdir():
                if path.is_file() and not path.name.startswith("."):
                    shutil.copyfile(path, copy / path.name)
            load_weights(copy, MODEL_DIGEST)
            with contextlib.suppress(FileExistsError):
                copy.rename(place)
    print(place)


def _generate(args: argparse.Namespace) -> None:
    from .units import SamplingParams

    engine = _load(args)
    if args.raw:
        prompt = engine.codec.encode(args.prompt)
    else:
        prompt = engine.codec.encode_chat([{"role": "user", "content": args.prompt}])
    room = max(1, MAX_MODEL_LEN - len(prompt))
    engine.add_request(prompt, SamplingParams(min(args.max_tokens, room), temperature=args.temperature))
    while engine.has_work:
        for output in engine.step():
            print(output.text, end="", flush=True)
    print()


def _bench(args: argparse.Namespace) -> None:
    from .units import SamplingParams

    if args.requests < 1:
        raise ValueError("--requests: at least 1")
    engine = _load(args)
    params = SamplingParams(args.output_tokens, temperature=0.0, ignore_eos=True)
    prompts = [[random.randrange(VOCAB_SIZE) for _ in range(args.prompt_tokens)] for _ in range(args.requests)]
    begin = time.perf_counter()
    times: dict[int, list[float]] = {engine.add_request(prompt, params).seq_id: [] for prompt in prompts}
    while engine.has_work:
        for output in engine.step():
            times[output.seq.seq_id].append(time.perf_counter() - begin)
    per_token = [(t[-1] - t[0]) / (len(t) - 1) for t in times.values() if len(t) > 1]
    figures = {
        "requests": args.requests,
        "prompt_tokens": args.prompt_tokens,
        "output_tokens": args.output_tokens,
        "ttft_ms": 1000 * statistics.fmean(t[0] for t in times.values()),
        "tpot_ms": 1000 * statistics.fmean(per_token) if per_token else None,
        "output_tokens_per_s": sum(map(len, times.values())) / max(t[-1] for t in times.values()),
    }
    for name, value in figures.items():
        print(f"{name}: {value}")
    print(json.dumps(figures))


def _serve(args: argparse.Namespace) -> None:
    """Bind, load, listen; at a signal, answer those who are here and go."""
    import asyncio

    import uvicorn

    from .units import create_app

    with _bound(args.host, args.port) as bound:
        with ThreadPoolExecutor(1) as loader:
            engine = loader.submit(_load, args).result()
        app = create_app(engine, api_key=args.api_key or os.environ.get("ENGINE_API_KEY") or None)
        service = app.state.service

        class Server(uvicorn.Server):
            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                if service.draining:
                    signal.signal(sig, signal.SIG_DFL)
                    signal.raise_signal(sig)
                service.draining = True

        async def run() -> None:
            server = Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_GRACE_S))
            serving = asyncio.create_task(server.serve(sockets=[bound]))
            while not serving.done():
                server.should_exit = service.draining and not service.num_open
                await asyncio.sleep(_LOOK_EVERY_S)
            await serving

        asyncio.run(run())


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[Any]:
    """A socket that has the address. Who connects while the model loads is answered when it is there."""
    try:
        bound = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise OSError(f"cannot serve at {host}:{port}: {error.strerror or error}") from None
    with bound:
        yield bound


if __name__ == "__main__":
    sys.exit(main())
