"""What is said to a model and what comes back, as plain data with a digest."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from metainfer.files import canonical_json, sha256_bytes

Role = Literal["system", "user", "assistant"]
_BYTES_PER_TOKEN = 3
"""Code and English take about four; an estimate that a budget relies on had better be too high."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Message(_Model):
    """One turn of a conversation."""

    role: Role
    content: str


class Tool(_Model):
    """A function that a model may call instead of answering in text."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of its arguments."""


class ToolCall(_Model):
    """A call that a model made. The name may be of no tool, and the arguments no JSON."""

    name: str
    arguments: str


class ChatRequest(_Model):
    """One question to a model. Equal requests are asked, and paid for, once."""

    model: str
    messages: tuple[Message, ...] = Field(min_length=1)
    max_tokens: int = Field(ge=1)
    temperature: float = Field(default=0.0, ge=0, le=2)
    seed: int | None = None
    sample: int = Field(default=0, ge=0)
    """Tells independent answers to the same question apart."""
    answer_schema: dict[str, Any] | None = None
    """JSON Schema of the answer, for endpoints that can be held to one."""
    tools: tuple[Tool, ...] = ()
    """Left out for endpoints that know no tools."""

    @property
    def digest(self) -> str:
        """Hex SHA-256 over all of it: what a reply is kept under."""
        absent = set() if self.tools else {"tools"}
        return sha256_bytes(canonical_json(self.model_dump(mode="json", exclude=absent)))

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, estimated from its bytes and rather too many than too few."""
        tools = sum(estimate_tokens(tool.model_dump_json()) for tool in self.tools)
        return tools + sum(estimate_tokens(message.content) + 8 for message in self.messages)


class Usage(_Model):
    """Tokens of one call."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    estimated: bool = False
    """Counted here, because the endpoint did not say."""

    @property
    def total(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Reply(_Model):
    """What a model answered."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    finish_reason: Literal["stop", "length", "tool_calls"]
    usage: Usage
    model: str
    """As the endpoint names what answered, which may be more exact than what was asked for."""

    @property
    def is_cut_off(self) -> bool:
        return self.finish_reason == "length"


def estimate_tokens(text: str) -> int:
    """Tokens of `text`, rather too many than too few."""
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)


def mended(text: str) -> str:
    """`text` as it can be kept: surrogates that make a character become it, others the replacement character.

    JSON may spell half a character, and nothing that is encoded may hold one. TypeError for what is no text.

    >>> mended("\\ud83d\\ude00 \\ud800") == "\U0001f600 \ufffd"
    True
    """
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} where text belongs")
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
