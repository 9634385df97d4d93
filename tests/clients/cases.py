"""Recorded replies as cases: what a client asks, and what the server sent, read plainly and by none of our code."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.recorded.traces import RECORDED, Recorded, recorded, said
from welldone.mock.script import MockReply, reply_from_trace
from welldone.rules.judge import has_content, judge

# Fields of a request on which the shape of an answer depends, each with what a client could send. What else was asked
# for (a limit, a seed) has shaped a recorded answer already.
SHAPING: dict[str, Callable[[Any], bool]] = {
    "stream": lambda value: value is True,
    "stream_options": lambda value: isinstance(value, dict),
    "n": lambda value: value > 0,
    "tools": lambda value: isinstance(value, list),
    "tool_choice": lambda value: isinstance(value, dict) or value in ("auto", "none", "required"),
    "parallel_tool_calls": lambda value: isinstance(value, bool),
    "response_format": lambda value: value["type"] in ("json_object", "json_schema"),
    "logprobs": lambda value: isinstance(value, int),
    "top_logprobs": lambda value: 0 <= value <= 20,
    "prompt": lambda value: isinstance(value, list) and isinstance(value[0], str),
}


@dataclass(frozen=True)
class Choice:
    """One answer: its text, its calls as name and arguments, and why it ended."""

    text: str
    calls: list[list[Any]]
    finish: str | None


@dataclass(frozen=True, kw_only=True)
class Case:
    """One reply of a server, and the request that it answers."""

    name: str
    row: tuple[str, str]
    """The line of the matrix in which it is counted: the server, and what it does."""
    asks: dict[str, Any]
    reply: MockReply
    endpoint: str = "chat"
    choices: tuple[Choice, ...] = ()
    usage: list[int] | None = None
    is_failure: bool = False
    """The server has said that it failed, or has not said all."""
    rules: tuple[str, ...] = ()
    """Those that it breaks."""

    @property
    def is_stream(self) -> bool:
        return "stream" in self.asks

    @property
    def asks_usage(self) -> bool:
        """A whole answer has its usage without a word."""
        return not self.is_stream or bool(self.asks.get("stream_options", {}).get("include_usage"))

    @property
    def wants_choices(self) -> bool:
        """More than one."""
        return "prompt" in self.asks or self.asks.get("n", 1) > 1

    @property
    def is_arguable(self) -> bool:
        """The server did not do as it was told: a client may show that, or object to it.

        It was to call a tool and did not, it came to its limit while it could still call one, or the arguments of its
        call are no object.
        """
        calls = [call for choice in self.choices for call in choice.calls]
        is_forced = self.asks.get("tool_choice", "auto") not in ("auto", "none")
        is_short = "tools" in self.asks and any(choice.finish == "length" for choice in self.choices)
        return (is_forced and not calls) or is_short or any(not is_object(written) for _, written in calls)


def is_object(arguments: str) -> bool:
    """Whether the arguments of a call are what they should be."""
    try:
        return isinstance(json.loads(arguments), dict)
    except json.JSONDecodeError:
        return False


def recorded_cases() -> list[Case]:
    """One for each reply to a request for an answer."""
    return [_case(one, record) for one in recorded() if (record := _record(one))["method"] == "POST"]


def _record(one: Recorded) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RECORDED / f"{one.name}.json").read_text("utf-8"))
    return record


def _case(one: Recorded, record: dict[str, Any]) -> Case:
    sent = _streamed(one) if one.is_stream else _whole(one)
    asks = _asks(one, sent["usage"])
    # What is known of the head is not about the answer.
    broken = judge(one.trace).counts if has_content(one.trace) else {}
    return Case(
        name=one.name,
        row=(record["server"], one.note.partition(": ")[2] or one.note or _kind(one, asks)),
        asks=asks,
        reply=reply_from_trace(record, one.trace.body),
        endpoint=one.trace.endpoint,
        rules=tuple(rule for rule in broken if not rule.startswith("http-")),
        **sent,
    )


def _asks(one: Recorded, usage: list[int] | None) -> dict[str, Any]:
    request = one.trace.request
    if request is None:  # it was no JSON, or too long to be kept: the reply tells what was asked
        return {"stream": True, "stream_options": {"include_usage": usage is not None}} if one.is_stream else {}
    return {name: request[name] for name, is_right in SHAPING.items() if name in request and is_right(request[name])}


def _kind(one: Recorded, asks: dict[str, Any]) -> str:
    """What the request was about, as a line of the matrix."""
    if one.trace.status != 200:
        return "refusals"
    if one.trace.complete is False or b'"error":' in one.trace.body:
        return "answers that break off"
    what = "tools" if "tools" in asks else one.trace.endpoint
    if "prompt" in asks or asks.get("n", 1) > 1:
        what += ", several choices"
    return f"{what}, streamed" if one.is_stream else f"{what}, whole"


def _streamed(one: Recorded) -> dict[str, Any]:
    heard = said(one.trace.body)
    names = _names(one.trace.body)
    calls = [(key[0], [names[key], written]) for key, written in sorted(heard.arguments.items())]
    choices = (
        Choice(text, [call for at, call in calls if at == index], heard.finishes.get(index))
        for index, text in sorted(heard.texts.items())
    )
    counted = heard.usage if heard.usage and any(heard.usage) else None  # zeros count nothing
    is_failure = heard.error is not None or not heard.finishes
    return {"choices": tuple(choices), "usage": counted, "is_failure": is_failure}


def _names(body: bytes) -> dict[tuple[int, int], str]:
    """The name of each call, by choice and index."""
    names: dict[tuple[int, int], str] = {}
    chunks = [json.loads(line.removeprefix("data: ")) for line in body.decode().splitlines() if "data: {" in line]
    for choice in [choice for chunk in chunks for choice in chunk.get("choices", [])]:
        for call in choice.get("delta", {}).get("tool_calls") or []:
            key = choice["index"], call["index"]
            names[key] = names.get(key, "") + (call["function"].get("name") or "")
    return names


def _whole(one: Recorded) -> dict[str, Any]:
    if one.trace.complete is False or one.trace.status != 200:
        return {"choices": (), "usage": None, "is_failure": True}
    body = json.loads(one.trace.body)
    counted = [body["usage"][f"{name}_tokens"] for name in ("prompt", "completion", "total")]
    return {"choices": tuple(map(_choice, body["choices"])), "usage": counted, "is_failure": False}


def _choice(part: dict[str, Any]) -> Choice:
    message = part.get("message", part)
    calls = [call["function"] for call in message.get("tool_calls") or []]
    text = message.get("content") or message.get("text") or ""
    return Choice(text, [[call["name"], call["arguments"]] for call in calls], part["finish_reason"])
