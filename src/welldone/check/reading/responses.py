"""What a reply of /v1/responses says."""

from collections.abc import Iterator
from typing import Any

from welldone.check.reading.said import Piece, Said, ToolCall, as_arguments
from welldone.rules.choices import as_list, as_object, as_text
from welldone.rules.heard import Form, Heard

_TEXT = "response.output_text.delta"
_REASONING = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_MORE = (
    *("response.refusal.delta", "response.function_call_arguments.delta"),
    "response.custom_tool_call_input.delta",
)
_ARGUMENTS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The types of calls, and the member that has their arguments."""
_ITEM_DONE = "response.output_item.done"
_TERMINAL = ("response.completed", "response.incomplete", "response.failed")


def choices(heard: Heard) -> list[Said]:
    """There is one, if anything was said."""
    if heard.form is not Form.STREAM:
        response = heard.reply
        return [_whole(response, as_list(response.get("output")))] if response else []
    told = pieces(heard)
    response = _terminal(heard)
    if not told and not response:
        return []
    text, reasoning = "".join(piece.text for piece in told), "".join(piece.reasoning for piece in told)
    return [Said(0, "assistant", text, reasoning, _calls(_done_items(heard)), _finish(response))]


def pieces(heard: Heard) -> list[Piece]:
    """One for each delta."""
    return [
        Piece(
            message.number,
            text=_delta(message.json) if kind == _TEXT else "",
            reasoning=_delta(message.json) if kind in _REASONING else "",
            has_more=kind in _MORE,
        )
        for message in heard.messages
        if (kind := message.json.get("type")) == _TEXT or kind in _REASONING or kind in _MORE
    ]


def usage(heard: Heard) -> object:
    """As the whole Response has it."""
    return (_terminal(heard) if heard.form is Form.STREAM else heard.reply).get("usage")


def _delta(event: dict[str, Any]) -> str:
    return as_text(event.get("delta"))


def _terminal(heard: Heard) -> dict[str, Any]:
    """The Response that ended the stream; an empty one where none did."""
    ends = [message.json for message in heard.messages if message.json.get("type") in _TERMINAL]
    return as_object(ends[-1].get("response")) if ends else {}


def _done_items(heard: Heard) -> list[Any]:
    """The items that are whole: as Codex reads them."""
    return [message.json.get("item") for message in heard.messages if message.json.get("type") == _ITEM_DONE]


def _whole(response: dict[str, Any], output: list[Any]) -> Said:
    items = [as_object(item) for item in output]
    text = "".join(_texts(items, "message", ("content",), "output_text"))
    reasoning = "".join(_texts(items, "reasoning", ("summary", "content"), None))
    return Said(0, "assistant", text, reasoning, _calls(items), _finish(response))


def _texts(items: list[dict[str, Any]], kind: str, places: tuple[str, ...], part_kind: str | None) -> Iterator[str]:
    for item in items:
        parts = [as_object(part) for place in places for part in as_list(item.get(place)) if item.get("type") == kind]
        yield from (as_text(part.get("text")) for part in parts if part_kind in (None, part.get("type")))


def _calls(items: list[Any]) -> tuple[ToolCall, ...]:
    calls = [item for item in map(as_object, items) if item.get("type") in _ARGUMENTS]
    return tuple(
        ToolCall(
            as_text(call.get("call_id")), as_text(call.get("name")), as_arguments(call.get(_ARGUMENTS[call["type"]]))
        )
        for call in calls
    )


def _finish(response: dict[str, Any]) -> object:
    """Why it ended: the reason where it is incomplete, else its status."""
    return as_object(response.get("incomplete_details")).get("reason") or response.get("status")
