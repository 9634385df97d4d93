"""What a reply of /v1/responses says."""

from collections.abc import Iterator
from typing import Any

from welldone.check.reading.said import ParsedDelta, ParsedChoice, ParsedToolCall, arguments_text
from welldone.rules.choices import as_list, as_object, as_text
from welldone.rules.heard import ReplyKind, TraceView

_TEXT_DELTA = "response.output_text.delta"
_REASONING_DELTAS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_OTHER_DELTAS = (
    *("response.refusal.delta", "response.function_call_arguments.delta"),
    "response.custom_tool_call_input.delta",
)
_ARGUMENT_FIELDS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The types of calls, and the member that has their arguments."""
_ITEM_DONE = "response.output_item.done"
_TERMINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")


def read_responses_choices(view: TraceView) -> list[ParsedChoice]:
    """There is one, if anything was said."""
    if view.reply_kind is not ReplyKind.STREAM:
        response = view.reply_object
        return [_buffered_response(response, as_list(response.get("output")))] if response else []
    told = read_responses_deltas(view)
    response = _terminal_response(view)
    if not told and not response:
        return []
    text, reasoning = "".join(piece.text for piece in told), "".join(piece.reasoning for piece in told)
    return [
        ParsedChoice(
            0, "assistant", text, reasoning, _item_tool_calls(_done_items(view)), _response_finish_reason(response)
        )
    ]


def read_responses_deltas(view: TraceView) -> list[ParsedDelta]:
    """One for each delta."""
    return [
        ParsedDelta(
            message.frame_number,
            text=_delta_text(message.json) if kind == _TEXT_DELTA else "",
            reasoning=_delta_text(message.json) if kind in _REASONING_DELTAS else "",
            has_other=kind in _OTHER_DELTAS,
        )
        for message in view.messages
        if (kind := message.json.get("type")) == _TEXT_DELTA or kind in _REASONING_DELTAS or kind in _OTHER_DELTAS
    ]


def read_responses_usage(view: TraceView) -> object:
    """As the whole Response has it."""
    return (_terminal_response(view) if view.reply_kind is ReplyKind.STREAM else view.reply_object).get("usage")


def _delta_text(event: dict[str, Any]) -> str:
    return as_text(event.get("delta"))


def _terminal_response(view: TraceView) -> dict[str, Any]:
    """The Response that ended the stream; an empty one where none did."""
    ends = [message.json for message in view.messages if message.json.get("type") in _TERMINAL_EVENTS]
    return as_object(ends[-1].get("response")) if ends else {}


def _done_items(view: TraceView) -> list[Any]:
    """The items that are whole: as Codex reads them."""
    return [message.json.get("item") for message in view.messages if message.json.get("type") == _ITEM_DONE]


def _buffered_response(response: dict[str, Any], output: list[Any]) -> ParsedChoice:
    items = [as_object(item) for item in output]
    text = "".join(_item_texts(items, "message", ("content",), "output_text"))
    reasoning = "".join(_item_texts(items, "reasoning", ("summary", "content"), None))
    return ParsedChoice(0, "assistant", text, reasoning, _item_tool_calls(items), _response_finish_reason(response))


def _item_texts(
    items: list[dict[str, Any]], kind: str, fields: tuple[str, ...], part_kind: str | None
) -> Iterator[str]:
    for item in items:
        parts = [as_object(part) for place in fields for part in as_list(item.get(place)) if item.get("type") == kind]
        yield from (as_text(part.get("text")) for part in parts if part_kind in (None, part.get("type")))


def _item_tool_calls(items: list[Any]) -> tuple[ParsedToolCall, ...]:
    calls = [item for item in map(as_object, items) if item.get("type") in _ARGUMENT_FIELDS]
    return tuple(
        ParsedToolCall(
            as_text(call.get("call_id")),
            as_text(call.get("name")),
            arguments_text(call.get(_ARGUMENT_FIELDS[call["type"]])),
        )
        for call in calls
    )


def _response_finish_reason(response: dict[str, Any]) -> object:
    """Why it ended: the reason where it is incomplete, else its status."""
    return as_object(response.get("incomplete_details")).get("reason") or response.get("status")
