"""What an endpoint understands: everything is asked for at first; what it refuses by name is left out from then on."""

from __future__ import annotations

import json
from typing import Any

from metainfer.agents.messages import ChatRequest, Message

_OPTIONAL = ("stream_options", "response_format", "seed", "temperature", "max_tokens", "tool_choice", "tools")
_SCHEMA_PROMPT = "Answer with one JSON object and nothing else. It must match this JSON Schema:\n"


class Dialect:
    """The fields of requests as one endpoint takes them. Learns from its refusals."""

    def __init__(self) -> None:
        self.without: set[str] = set()
        """Fields that the endpoint has refused."""

    def learn(self, refusal: str) -> bool:
        """Leave out the field that a refusal (status 400) names. False if it names none that can be left out."""
        named = next((name for name in _OPTIONAL if name in refusal and name not in self.without), None)
        if named is not None:
            self.without.add(named)
        return named is not None

    def fields(self, request: ChatRequest) -> dict[str, Any]:
        """Arguments of `chat.completions.create`, streamed."""
        limit = "max_completion_tokens" if "max_tokens" in self.without else "max_tokens"
        fields: dict[str, Any] = {"model": request.model, "stream": True, limit: request.max_tokens}
        wanted: dict[str, Any] = {
            "stream_options": {"include_usage": True},
            "temperature": request.temperature,
            "seed": request.seed,
        }
        messages = list(request.messages)
        if request.answer_schema is not None:
            wanted["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "strict": True, "schema": request.answer_schema},
            }
            if "response_format" in self.without:
                messages.append(Message(role="user", content=_SCHEMA_PROMPT + json.dumps(request.answer_schema)))
        if request.tools and "tools" not in self.without:
            wanted["tools"] = [{"type": "function", "function": tool.model_dump()} for tool in request.tools]
            wanted["tool_choice"] = "auto"
        fields["messages"] = [message.model_dump() for message in messages]
        given = {name: value for name, value in wanted.items() if value is not None and name not in self.without}
        return fields | given
