"""Faults that were seen in engines, each put into a tiny engine as one change of text, and the gate to see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Fault:
    """`old`, which stands once in `module` of the assembled engine, becomes `new`."""

    name: str
    engine: Literal["qwen2", "qwen3"]
    module: str
    old: str
    new: str
    found: str
    """A regular expression for one of the findings: the gate must be red for this reason."""
    checks: tuple[str, ...] = ()
    """Serving: the checks that must see it."""

    def __str__(self) -> str:
        return self.name


NUMERICS = [
    Fault(
        "rope turns neighbours instead of halves",
        "qwen3",
        "layers.py",
        "x.roll(HEAD_DIM // 2, dims=-1)",
        "x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)",
        "layer 0|token 0",
    ),
    Fault(
        "the k norm's weight is never loaded",
        "qwen3",
        "attention.py",
        'RMSNorm(weights["k_norm.weight"], RMS_NORM_EPS)',
        "RMSNorm(torch.ones(HEAD_DIM), RMS_NORM_EPS)",
        "altering it moves the engine otherwise",
    ),
    Fault(
        "one norm has the weight of another",
        "qwen2",
        "model.py",
        'weights["post_attention_layernorm.weight"]',
        'weights["input_layernorm.weight"]',
        "layer 0",
    ),
    Fault(
        "the residual is added twice",
        "qwen2",
        "model.py",
        "x = x + self.self_attn(",
        "x = x + x + self.self_attn(",
        "layer 0",
    ),
    Fault(
        "a batch has the length of its first sequence",
        "qwen2",
        "batch.py",
        "context_lens=torch.tensor(context_lens,",
        "context_lens=torch.tensor([context_lens[0]] * len(context_lens),",
        "alone and in a batch|engine failed",
    ),
    Fault(
        "every sequence gets the first one's token",
        "qwen2",
        "sampler.py",
        "logits.argmax(dim=-1).tolist()",
        "[int(logits[0].argmax())] * len(sequences)",
        "the reference's",
    ),
    Fault(
        "the head is the embedding though they are untied",
        "qwen2",
        "model.py",
        'weights["lm_head.weight"]',
        "self.embed_tokens",
        "lm_head.weight|the reference's",
    ),
    Fault(
        "another model's folder is loaded",
        "qwen3",
        "weights.py",
        "!= expected_digest",
        '== ""',
        "another digest",
    ),
    Fault(
        "the embedding is widened in memory",
        "qwen2",
        "model.py",
        'self.embed_tokens = weights["model.embed_tokens.weight"]',
        'self.embed_tokens = weights["model.embed_tokens.weight"].float()',
        "bfloat16",
    ),
    Fault(
        "no prefix is ever found in the cache",
        "qwen2",
        "block_manager.py",
        "range((seq.num_prompt_tokens - 1) // self.block_size)",
        "range(0)",
        "came from the cache",
    ),
]

SERVING = [
    Fault(
        "the beginning of a stop string is streamed",
        "qwen2",
        "text.py",
        "held = max((_overlap(text, stop) for stop in self._stop), default=0)",
        "held = 0",
        "is not what comes before|streamed",
        ("stop_strings_do_not_leak",),
    ),
    Fault(
        "only the first end of sequence ends",
        "qwen2",
        "engine.py",
        "token.token_id in config.EOS_TOKEN_IDS",
        "token.token_id == config.EOS_TOKEN_IDS[0]",
        "ends with length",
        ("every_end_of_sequence_ends",),
    ),
    Fault(
        "an abort keeps the blocks",
        "qwen2",
        "scheduler.py",
        "if seq in self.running:\n                    self.finish(seq)",
        "if seq in self.running:\n                    self.running.remove(seq)",
        "all blocks free or cached",
        ("clients_that_go_away_free_their_blocks",),
    ),
    Fault(
        "a client that goes away is not noticed",
        "qwen2",
        "server.py",
        '!= "http.disconnect"',
        '!= "never"',
        "no abort|all blocks free",
        ("clients_that_go_away_free_their_blocks",),
    ),
    Fault(
        "unknown fields are ignored",
        "qwen2",
        "server.py",
        'extra="forbid"',
        'extra="ignore"',
        "unknown field",
        ("unknown_fields_are_refused_by_name",),
    ),
    Fault(
        "max_tokens 0 is accepted",
        "qwen2",
        "sequence.py",
        '_check("max_tokens", self.max_tokens, int, 1,',
        '_check("max_tokens", self.max_tokens, int, 0,',
        "max_tokens: 0",
        ("values_out_of_range_are_refused",),
    ),
    Fault(
        "the first token id outside of the vocabulary is accepted",
        "qwen2",
        "engine.py",
        "max(prompt_token_ids) >= config.VOCAB_SIZE",
        "max(prompt_token_ids) > config.VOCAB_SIZE",
        r"prompt \[320\]",
        ("prompts_that_cannot_be_served_are_refused",),
    ),
    Fault(
        "a seed is not used",
        "qwen2",
        "sequence.py",
        "self.generator.manual_seed(params.seed)",
        "self.generator.seed()",
        "another text the second time",
        ("seeds_decide",),
    ),
    Fault(
        "one token too many is counted",
        "qwen2",
        "server.py",
        "completion = sum(seq.num_generated for seq in sequences)",
        "completion = 1 + sum(seq.num_generated for seq in sequences)",
        "completion tokens|asked for",
        ("limits_are_kept", "completion_is_the_references"),
    ),
    Fault(
        "the chat prompt lacks the assistant's turn",
        "qwen2",
        "text.py",
        '"add_generation_prompt": True',
        '"add_generation_prompt": False',
        "prompt tokens",
        ("chat_is_the_references",),
    ),
    Fault(
        "any key opens",
        "qwen2",
        "server.py",
        "if self._bearer is not None and not",
        "if self._bearer is None and not",
        "without a key|without",
        ("answers_about_itself",),
    ),
    Fault(
        "SIGTERM cuts answers off",
        "qwen2",
        "__main__.py",
        "self.should_exit = self.force_exit = service.draining\n            service.draining = True",
        "self.should_exit = self.force_exit = True\n            service.draining = True",
        "SIGTERM|stream|RemoteProtocolError",
        ("sigterm_drains",),
    ),
    Fault(
        "half a request holds up the end",
        "qwen2",
        "__main__.py",
        ", timeout_graceful_shutdown=5",
        "",
        "still runs",
        ("sigterm_drains",),
    ),
]

STATIC = [
    Fault("an end of sequence is typed in", "qwen2", "engine.py", "in config.EOS_TOKEN_IDS", "in (258, 256)",
          "258 is EOS"),
    Fault("a hidden test mode", "qwen2", "engine.py", "self.codec = TextCodec(model_dir)",
          'self.codec = TextCodec(model_dir)\n        self.fast = os.environ.get("CI") == "true"', "reads CI"),
    Fault("a branch that the deployment decides", "qwen2", "engine.py", "self.codec = TextCodec(model_dir)",
          "if config.NUM_LAYERS > 1:\n            self.codec = TextCodec(model_dir)", "once and for all"),
    Fault("modules are replaced", "qwen2", "__init__.py", '"""\n',
          '"""\n\nimport sys\nimport textwrap\n\nsys.modules[__name__ + ".sampler"] = textwrap\n', "sys.modules"),
    Fault("the big framework is used after all", "qwen2", "model.py", "from torch import Tensor\n",
          "from torch import Tensor\nfrom transformers import AutoModelForCausalLM\n", "imports transformers"),
    Fault("a wrong type", "qwen2", "batch.py", "query_start=torch.tensor(", "query_start=int(", "mypy"),
    Fault("a kernel that does not compile", "qwen2", "csrc/paged_attention.cpp", '#include "constants.h"',
          "#error no constants", r"g\+\+"),
    Fault("a syntax error", "qwen2", "batch.py", "def prepare_batch(", "def prepare_batch((", "does not compile"),
]  # fmt: skip

UNIT = [
    Fault(
        "epsilon stands outside of the root",
        "qwen2",
        "layers.py",
        "F.rms_norm(x, self.weight.shape, self.weight, self.eps)",
        "x / (x.square().mean(-1, keepdim=True).sqrt() + self.eps) * self.weight",
        "family/rmsnorm",
    ),
    Fault(
        "a block's hash forgets what came before",
        "qwen2",
        "block_manager.py",
        "hashlib.sha256(parent + array",
        "hashlib.sha256(array",
        "general/paged-kv-cache",
    ),
    Fault(
        "the sampler is another module",
        "qwen2",
        "__init__.py",
        '"""\n',
        '"""\n\nimport sys\nimport textwrap\n\nsys.modules[__name__ + ".sampler"] = textwrap\n',
        "textwrap.*outside of",
    ),
]
