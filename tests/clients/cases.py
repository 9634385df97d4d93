"""The recorded replies as cases: what a client asks, and what the server sent, read plainly and by none of our code."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.recorded.traces import RECORDED, Recorded, recorded, said
from welldone.engines.scripts import Reply, replay

USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")
# Fields of a request on which the shape of an answer depends, each with what a client could send. What else was asked
# for (a limit, a seed) has shaped a recorded answer already.
SHAPING = {
    "stream": lambda value: value is True,
    "stream_options": lambda value: isinstance(value, dict),
    "n": lambda value: isinstance(value, int) and value > 0,
    "tools": lambda value: isinstance(value, list),
    "tool_choice": lambda value: isinstance(value, dict) or value in ("auto", "none", "required"),
    "parallel_tool_calls": lambda value: isinstance(value, bool),
    "response_format": lambda value: value["type"] in ("json_object", "json_schema"),
    "logprobs": lambda value: isinstance(value, int),
    "top_logprobs": lambda value: 0 <= value <= 20,
    "prompt": lambda value: isinstance(value, list),
}


@dataclass(frozen=True)
class Choice:
    """One answer."""

    text: str
    calls: list[list[str]]
    finish: str | None


@dataclass(frozen=True)
class Case:
    """One recorded reply."""

    name: str
    server: str
    note: str
    endpoint: str
    asks: dict[str, Any]
    choices: list[Choice]
    usage: list[int] | None
    failure: str | None
    reply: Reply
    recorded: Recorded

    @property
    def is_stream(self) -> bool:
        return "stream" in self.asks

    @property
    def asks_usage(self) -> bool:
        """A whole answer has its usage without a word."""
        return not self.is_stream or bool(self.asks.get("stream_options", {}).get("include_usage"))


@cache
def cases() -> list[Case]:
    """All of them, by name."""
    return [_case(one) for one in recorded() if _record(one)["method"] == "POST"]


def _record(one: Recorded) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RECORDED / f"{one.name}.json").read_text("utf-8"))
    return record


def _case(one: Recorded) -> Case:
    record = _record(one)
    choices, usage, failure = _streamed(one) if one.is_stream else _whole(one)
    return Case(
        name=one.name,
        server=record["server"],
        note=one.note,
        endpoint=one.trace.endpoint,
        asks=_asks(one, usage),
        choices=choices,
        usage=usage,
        failure=failure,
        reply=replay(record, one.trace.body),
        recorded=one,
    )


def _asks(one: Recorded, usage: list[int] | None) -> dict[str, Any]:
    request = one.trace.request
    if request is None:  # it was no JSON, or too long to be kept: the reply tells what was asked
        return {"stream": True, "stream_options": {"include_usage": usage is not None}} if one.is_stream else {}
    return {name: request[name] for name, is_right in SHAPING.items() if name in request and is_right(request[name])}


def _streamed(one: Recorded) -> tuple[list[Choice], list[int] | None, str | None]:
    heard = said(one.trace.body)
    names = _names(one.trace.body)
    choices = [
        Choice(
            text,
            [[names[key], written] for key, written in sorted(heard.arguments.items()) if key[0] == index],
            heard.finishes.get(index),
        )
        for index, text in sorted(heard.texts.items())
    ]
    usage = heard.usage if heard.usage and any(heard.usage) else None  # zeros count nothing
    return choices, usage, heard.error or (None if heard.finishes else "cut")


def _names(body: bytes) -> dict[tuple[int, int], str]:
    """The name of each call, by choice and index."""
    names: dict[tuple[int, int], str] = {}
    for line in body.decode().splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: ")).get("choices", []):
                for call in choice.get("delta", {}).get("tool_calls") or []:
                    key = choice["index"], call["index"]
                    names[key] = names.get(key, "") + (call["function"].get("name") or "")
    return names


def _whole(one: Recorded) -> tuple[list[Choice], list[int] | None, str | None]:
    if one.trace.complete is False:
        return [], None, "cut"
    body = json.loads(one.trace.body)
    if one.trace.status != 200:
        return [], None, body["error"]["message"]
    return [_choice(part) for part in body["choices"]], [body["usage"][name] for name in USAGE], None


def _choice(part: dict[str, Any]) -> Choice:
    message = part.get("message", part)
    calls = [call["function"] for call in message.get("tool_calls") or []]
    text = message.get("content") or message.get("text") or ""
    return Choice(text, [[call["name"], call["arguments"]] for call in calls], part["finish_reason"])
