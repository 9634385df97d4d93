"""/v1/responses."""

from collections.abc import Mapping
from typing import Any

from welldone.bench.dialects.alike import Json
from welldone.bench.dialects.dialect import Body, Headers, apart
from welldone.bench.dialects.ear import SHOWN, Ear
from welldone.bench.dialects.native import More, NativeEar
from welldone.bench.record import Record
from welldone.wire.dialects.responses import ResponsesNative
from welldone.wire.head import Head
from welldone.wire.native import Native

_NOBODY = Head("resp_bench", 0, "bench")
_TEXT = "response.output_text"
_REFUSAL = "response.refusal"
_THOUGHTS = ("response.reasoning_text", "response.reasoning_summary_text")
_CALLS = {
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
    "mcp_call": "response.mcp_call_arguments",
    "code_interpreter_call": "response.code_interpreter_call_code",
}
"""Items that are calls, and the events of what they are called with."""
_STEMS = frozenset({_TEXT, _REFUSAL, *_THOUGHTS, *_CALLS.values()})
_BEGINS = ("response.created", "response.in_progress")
_ITEM = "response.output_item.added"
_ENDS = ("response.completed", "response.incomplete")
_MEMBERS = ("text", "refusal", "arguments", "input", "code")
"""Where an event that ends a text has all of it."""


class Responses:
    """How responses are asked for and heard."""

    path = "/responses"
    wanted: Mapping[str, Any] = {"store": False}
    least_tokens = 16  # OpenAI refuses fewer

    def headers(self, key: str | None) -> Headers:
        return ()

    def body(self, members: Body, messages: list[Body], limit_tokens: int | None) -> Body:
        system, others = apart(messages)
        body = {**members, "input": [_item(message, place) for place, message in enumerate(others)], "stream": True}
        if system:
            body["instructions"] = system
        return body if limit_tokens is None else body | {"max_output_tokens": limit_tokens}

    def ear(self, record: Record, body: Body) -> Ear:
        return ResponsesEar(record)


def _item(message: Body, place: int) -> Body:
    """A message as an item. Of what the model said servers want the item as they would have made it themselves."""
    if message["role"] != "assistant":
        return message
    part = {"type": "output_text", "text": message["content"], "annotations": []}
    return {"type": "message", "id": f"msg_{place}", "status": "completed", "role": "assistant", "content": [part]}


class ResponsesEar(NativeEar):
    """Hears one stream of responses."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self._piecewise: set[str] = set()  # kinds of texts that come in pieces

    def _mender(self) -> Native:
        return ResponsesNative(fallback=_NOBODY)

    def _hear(self, value: Json, kind: str, now: float) -> More | None:
        stem, _, what = kind.rpartition(".")
        if stem in _STEMS:
            return self._hear_text(value, stem, what, now)
        if kind in _BEGINS:
            self._open(now)
        elif kind == _ITEM:
            item = value.get("item")
            if isinstance(item, dict) and item.get("type") in _CALLS:
                self._call(now)
        elif kind in _ENDS:
            self._record.finish = _reason(value.get("response"), what)
        return None

    def _hear_text(self, value: Json, stem: str, what: str, now: float) -> More | None:
        if what == "delta":
            text = value.get("delta")
            self._piecewise.add(stem)
        else:  # all of it: some say it only here
            text = None if stem in self._piecewise else next((value[name] for name in _MEMBERS if name in value), None)
        if not isinstance(text, str) or not text:
            return None
        into = self.unseen
        if stem == _TEXT:
            into = self.texts
            self._say(text, now)
        elif stem == _REFUSAL:
            self._refuse(text, now)
        elif stem in _THOUGHTS:
            self._think(text, now)
        else:
            self._call(now)
            self._mutter(text, now)
        return More(("delta",), into) if what == "delta" else None


def _reason(response: object, status: str) -> str:
    """Why an answer ended, in its server's words."""
    match response:
        case {"incomplete_details": {"reason": str(reason)}}:
            return reason[:SHOWN]
        case _:
            return status
