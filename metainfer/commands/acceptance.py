"""Asking an engine one question, and judging the answer: against transformers, and by running the code it wrote."""

from __future__ import annotations

import ast
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

from metainfer.sandbox.records import Limits
from metainfer.sandbox.sandbox import Sandbox

_PORT = 8000
_START_TIMEOUT_S = 180.0
_MAX_TOKENS = 512
_TIE_MARGIN = 1e-4
"""Where the reference's best two logits are closer than this, either token is right; the comparison ends there."""
_NUMBERS = (*range(-2, 60), 97, 7917, 7919)


@dataclass(frozen=True)
class Answer:
    """What came back over HTTP."""

    text: str
    tokens: int
    finish_reason: str
    seconds: float


def ask_engine(engine_dir: Path, package: str, model: Path, question: str, sandbox: Sandbox) -> Answer:
    """Serve the engine in the sandbox and ask it greedily through the official client."""
    import httpx2
    import openai

    with sandbox.room({"engine": engine_dir, "model": model}) as room:
        command = [room.python, "-m", package, "serve", "--model", room.path("model"), "--port", str(_PORT)]
        with room.serve(command, port=_PORT, env={"PYTHONPATH": room.path("engine")}) as server:
            server.wait_until_ready(_START_TIMEOUT_S)
            http = openai.DefaultHttpxClient(transport=httpx2.HTTPTransport(uds=str(server.socket)))
            client = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", http_client=http)
            began = time.monotonic()
            reply = client.chat.completions.create(
                model=client.models.list().data[0].id,
                messages=[{"role": "user", "content": question}],
                temperature=0,
                max_tokens=_MAX_TOKENS,
            )
            seconds = time.monotonic() - began
    choice = reply.choices[0]
    assert reply.usage is not None
    return Answer(choice.message.content or "", reply.usage.completion_tokens, choice.finish_reason, seconds)


def matches_reference(model: Path, question: str, answer: Answer) -> tuple[bool, int]:
    """(whether transformers in fp32 chooses the same token at every position, tokens compared).

    One forward pass over prompt and answer, argmax at each position. An answer that stopped must be followed by an
    end-of-sequence token.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    tokenizer = AutoTokenizer.from_pretrained(model)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    tokens = tokenizer.encode(answer.text, add_special_tokens=False)
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 :]
    best = logits.topk(2)
    for position, token in enumerate(tokens):
        if best.values[position, 0] - best.values[position, 1] < _TIE_MARGIN:
            return True, position
        if int(best.indices[position, 0]) != token:
            return False, position
    if answer.finish_reason != "stop":
        return True, len(tokens)
    eos = GenerationConfig.from_pretrained(model).eos_token_id
    ends = set(eos if isinstance(eos, list) else [eos])
    return int(best.indices[len(tokens), 0]) in ends, len(tokens) + 1


def prime_code_works(text: str, sandbox: Sandbox) -> tuple[bool, str]:
    """(whether the answer's first function tells primes from other numbers, what was found). Runs in the sandbox."""
    block = re.search(r"```(?:python)?\n(.*?)```", text, re.DOTALL)
    try:
        tree = ast.parse(block[1] if block else text)
    except SyntaxError as error:
        return False, f"is not Python: {error}"
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and len(node.args.args) == 1]
    if not names:
        return False, "has no function of one argument"
    definitions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.Import | ast.ImportFrom)]
    program = "\n".join(ast.unparse(node) for node in definitions)
    program += f"\nimport json\nprint(json.dumps([bool({names[0]}(n)) for n in {list(_NUMBERS)}]))\n"
    if not sandbox.isolating:
        return False, "was not run: there is no sandbox for it"
    with sandbox.room() as room:
        result = room.run([room.python, "-I", "-c", program], limits=Limits(wall_s=20))
    if not result.ok:
        return False, f"fails: {result.explain(300)}"
    found = json.loads(result.stdout.strip().splitlines()[-1])
    wrong = [n for n, said in zip(_NUMBERS, found, strict=True) if said != _is_prime(n)]
    return (
        not wrong,
        f"{names[0]}() is wrong for {wrong}" if wrong else f"{names[0]}() is right for {len(found)} numbers",
    )


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % divisor for divisor in range(2, n))
