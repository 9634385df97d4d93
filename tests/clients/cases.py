"""Recorded replies as test cases: the request and the expected content, parsed without code of welldone."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.recorded.traces import RECORDED, RecordedTrace, read_content, recorded_traces
from welldone.mock.script import MockReply, reply_from_trace
from welldone.rules.judge import has_content, judge

# Request fields that determine the structure of an answer, each with a test of the values that a client can send. Other
# fields (a limit, a seed) only affected the content of the recorded answer.
RELEVANT_FIELDS: dict[str, Callable[[Any], bool]] = {
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
    """One choice: text, tool calls as name and arguments, finish reason."""

    text: str
    calls: list[list[Any]]
    finish: str | None


@dataclass(frozen=True, kw_only=True)
class Case:
    """Reply of a server and the request that it answers."""

    name: str
    row: tuple[str, str]
    """Row of the matrix: the server and the kind of reply."""
    parameters: dict[str, Any]
    reply: MockReply
    endpoint: str = "chat"
    choices: tuple[Choice, ...] = ()
    usage: list[int] | None = None
    is_failure: bool = False
    """The reply is an error or is truncated."""
    rules: tuple[str, ...] = ()
    """Ids of the rules that the reply violates."""

    @property
    def is_stream(self) -> bool:
        return "stream" in self.parameters

    @property
    def requests_usage(self) -> bool:
        """Whether the reply must have usage; a buffered one always has."""
        return not self.is_stream or bool(self.parameters.get("stream_options", {}).get("include_usage"))

    @property
    def has_several_choices(self) -> bool:
        """Whether the request produces more than one choice."""
        return "prompt" in self.parameters or self.parameters.get("n", 1) > 1

    @property
    def may_raise(self) -> bool:
        """Whether the server did not follow the request, so that a client may raise an error instead.

        A required tool call is missing, the limit was reached while tools were offered, or the arguments of a call are
        not an object.
        """
        calls = [call for choice in self.choices for call in choice.calls]
        is_forced = self.parameters.get("tool_choice", "auto") not in ("auto", "none")
        is_truncated = "tools" in self.parameters and any(choice.finish == "length" for choice in self.choices)
        return (is_forced and not calls) or is_truncated or any(not is_object(arguments) for _, arguments in calls)


def is_object(arguments: str) -> bool:
    """Return whether the arguments of a call are a JSON object."""
    try:
        return isinstance(json.loads(arguments), dict)
    except json.JSONDecodeError:
        return False


def recorded_cases() -> list[Case]:
    """Return one case per recorded reply to a POST request."""
    return [
        _case(recorded, record) for recorded in recorded_traces() if (record := _record(recorded))["method"] == "POST"
    ]


def _record(recorded: RecordedTrace) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RECORDED / f"{recorded.name}.json").read_text("utf-8"))
    return record


def _case(recorded: RecordedTrace, record: dict[str, Any]) -> Case:
    sent = _streamed(recorded) if recorded.is_stream else _buffered(recorded)
    parameters = _parameters(recorded, sent["usage"])
    # A trace without content has only header violations.
    violations = judge(recorded.trace).counts if has_content(recorded.trace) else {}
    return Case(
        name=recorded.name,
        row=(record["server"], recorded.note.partition(": ")[2] or recorded.note or _kind(recorded, parameters)),
        parameters=parameters,
        reply=reply_from_trace(record, recorded.trace.body),
        endpoint=recorded.trace.endpoint,
        rules=tuple(rule for rule in violations if not rule.startswith("http-")),
        **sent,
    )


def _parameters(recorded: RecordedTrace, usage: list[int] | None) -> dict[str, Any]:
    request = recorded.trace.request
    if request is None:  # not JSON or too long to be recorded: derive it from the reply
        return {"stream": True, "stream_options": {"include_usage": usage is not None}} if recorded.is_stream else {}
    return {
        name: request[name]
        for name, is_supported in RELEVANT_FIELDS.items()
        if name in request and is_supported(request[name])
    }


def _kind(recorded: RecordedTrace, parameters: dict[str, Any]) -> str:
    """Kind of the reply, as a row of the matrix."""
    if recorded.trace.status != 200:
        return "errors"
    if recorded.trace.complete is False or b'"error":' in recorded.trace.body:
        return "truncated replies"
    kind = "tools" if "tools" in parameters else recorded.trace.endpoint
    if "prompt" in parameters or parameters.get("n", 1) > 1:
        kind += ", several choices"
    return f"{kind}, streamed" if recorded.is_stream else f"{kind}, not streamed"


def _streamed(recorded: RecordedTrace) -> dict[str, Any]:
    content = read_content(recorded.trace.body)
    names = _names(recorded.trace.body)
    calls = [(key[0], [names[key], arguments]) for key, arguments in sorted(content.arguments.items())]
    choices = (
        Choice(text, [call for choice_index, call in calls if choice_index == index], content.finishes.get(index))
        for index, text in sorted(content.texts.items())
    )
    usage_counts = content.usage if content.usage and any(content.usage) else None  # all zero: the server did not count
    is_failure = content.error is not None or not content.finishes
    return {"choices": tuple(choices), "usage": usage_counts, "is_failure": is_failure}


def _names(body: bytes) -> dict[tuple[int, int], str]:
    """Return the name of each call by choice and index."""
    names: dict[tuple[int, int], str] = {}
    chunks = [json.loads(line.removeprefix("data: ")) for line in body.decode().splitlines() if "data: {" in line]
    for choice in [choice for chunk in chunks for choice in chunk.get("choices", [])]:
        for call in choice.get("delta", {}).get("tool_calls") or []:
            key = choice["index"], call["index"]
            names[key] = names.get(key, "") + (call["function"].get("name") or "")
    return names


def _buffered(recorded: RecordedTrace) -> dict[str, Any]:
    if recorded.trace.complete is False or recorded.trace.status != 200:
        return {"choices": (), "usage": None, "is_failure": True}
    body = json.loads(recorded.trace.body)
    usage_counts = [body["usage"][f"{name}_tokens"] for name in ("prompt", "completion", "total")]
    return {"choices": tuple(map(_choice, body["choices"])), "usage": usage_counts, "is_failure": False}


def _choice(part: dict[str, Any]) -> Choice:
    message = part.get("message", part)
    calls = [call["function"] for call in message.get("tool_calls") or []]
    text = message.get("content") or message.get("text") or ""
    return Choice(text, [[call["name"], call["arguments"]] for call in calls], part["finish_reason"])
