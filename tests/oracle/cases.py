"""Correct streams and the expected result of every client.

The streams are independent of our writers, which are tested here.
"""

import json
from dataclasses import dataclass
from typing import Any

from tests.oracle.reply import Choice, Reply, choice, reply


@dataclass(frozen=True)
class Case:
    """A stream and the expected result of a client."""

    name: str
    endpoint: str  # "chat" or "completions"
    body: bytes
    expected: Reply


def cases() -> list[Case]:
    """Return all streams that every client must read correctly."""
    return [
        *_texts(),
        *_tools(),
        *_others(),
        *_completions(),
    ]


OPENING = {"role": "assistant", "content": ""}
DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
ERROR = {"message": "the engine stopped", "type": "server_error", "param": None, "code": None}


def _frame(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _chat(delta: dict[str, Any], *, index: int = 0, finish: str | None = None, **more: object) -> bytes:
    logprobs = more.pop("logprobs", None)
    part = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return _chat_chunk([part], **more)


def _chat_chunk(choices: list[dict[str, Any]], **more: object) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "m"}
    return _frame({**head, "choices": choices, **more})


def _role(index: int = 0) -> bytes:
    return _chat(OPENING, index=index)


def _texts() -> list[Case]:
    hello = choice(role="assistant", text="Hello wörld 👋", finish="stop")
    texts = [{"content": text} for text in ("Hello", " wörld", " 👋")]
    plain = _role() + b"".join(map(_chat, texts)) + _chat({}, finish="stop") + DONE
    kept_alive = plain.replace(b"\n\n", b"\n\n: keep-alive\n\n", 2)
    cut_short = _role() + _chat({"content": "Hel"}) + _chat({}, finish="length") + DONE
    filtered = _role() + _chat({"content": "Hel"}) + _chat({}, finish="content_filter") + DONE
    no_text = _role() + _chat({}, finish="stop") + DONE
    return [
        Case("plain", "chat", plain, reply(hello)),
        Case("keep-alive", "chat", kept_alive, reply(hello)),
        Case("length", "chat", cut_short, reply(choice(role="assistant", text="Hel", finish="length"))),
        Case("content_filter", "chat", filtered, reply(choice(role="assistant", text="Hel", finish="content_filter"))),
        Case("no text", "chat", no_text, reply(choice(role="assistant", finish="stop"))),
        Case("two choices", "chat", _two(), reply(_text_choice("Yes."), _text_choice("No."))),
        Case("usage", "chat", _with_usage(), reply(_text_choice("Yes."), usage=[9, 2, 11])),
        Case("logprobs", "chat", _with_logprobs(), reply(_text_choice("Yes."))),
    ]


def _text_choice(text: str) -> Choice:
    return choice(role="assistant", text=text, finish="stop")


def _two() -> bytes:
    return b"".join(
        [
            _role(0),
            _role(1),
            _chat({"content": "Yes"}, index=0),
            _chat({"content": "No"}, index=1),
            _chat({"content": "."}, index=1),
            _chat({"content": "."}, index=0),
            _chat({}, index=1, finish="stop"),
            _chat({}, index=0, finish="stop"),
            DONE,
        ]
    )


def _with_usage() -> bytes:
    chunks = [
        _chat(OPENING, usage=None),
        _chat({"content": "Yes."}, usage=None),
        _chat({}, finish="stop", usage=None),
        _chat_chunk([], usage=USAGE),
    ]
    return b"".join(chunks) + DONE


def _with_logprobs() -> bytes:
    def entry(token: str) -> dict[str, Any]:
        best = {"token": token, "logprob": -0.25, "bytes": list(token.encode())}
        return {"content": [{**best, "top_logprobs": [best]}], "refusal": None}

    texts = [_chat({"content": text}, logprobs=entry(text)) for text in ("Yes", ".")]
    return _role() + b"".join(texts) + _chat({}, finish="stop") + DONE


def _call(index: int, call_id: str, name: str) -> dict[str, Any]:
    made = {"name": name, "arguments": ""}
    return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": made}]}


def _arguments(index: int, piece: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _tools() -> list[Case]:
    role = _chat({"role": "assistant", "content": None})
    end = _chat({}, finish="tool_calls") + DONE
    first = [_call(0, "call_a", "weather"), _arguments(0, '{"city":'), _arguments(0, ' "Zürich"}')]
    second = [_call(1, "call_b", "clock"), _arguments(1, "{}")]
    made = [["call_a", "weather", '{"city": "Zürich"}'], ["call_b", "clock", "{}"]]
    one = role + b"".join(map(_chat, first)) + end
    two = role + b"".join(map(_chat, first + second)) + end
    after_text = _role() + _chat({"content": "Let me look."}) + b"".join(map(_chat, first)) + end
    return [
        Case("one tool", "chat", one, reply(_called(made[:1]))),
        Case("parallel tools", "chat", two, reply(_called(made))),
        Case("text, then a tool", "chat", after_text, reply(_called(made[:1], "Let me look."))),
    ]


def _called(tools: list[list[str]], text: str = "") -> Choice:
    return choice(role="assistant", text=text, tools=tools, finish="tool_calls")


def _others() -> list[Case]:
    head = _chat({"role": "assistant", "content": None})
    end = _chat({}, finish="stop") + DONE
    thoughts = [{"reasoning_content": "The user "}, {"reasoning_content": "greets."}, {"content": "Hello"}]
    refusals = [{"refusal": "I cannot "}, {"refusal": "do that."}]
    thought = choice(role="assistant", reasoning="The user greets.", text="Hello", finish="stop")
    refused = choice(role="assistant", refusal="I cannot do that.", finish="stop")
    failed = _role() + _chat({"content": "Hel"}) + _frame({"error": ERROR}) + DONE
    half = choice(role="assistant", text="Hel")
    return [
        Case("reasoning", "chat", head + b"".join(map(_chat, thoughts)) + end, reply(thought)),
        Case("refusal", "chat", head + b"".join(map(_chat, refusals)) + end, reply(refused)),
        Case("error in mid-stream", "chat", failed, reply(half, error="the engine stopped")),
        Case("error at once", "chat", _frame({"error": ERROR}) + DONE, reply(error="the engine stopped")),
    ]


def _text(text: str, *, index: int = 0, finish: str | None = None) -> bytes:
    return _text_chunk([{"index": index, "text": text, "logprobs": None, "finish_reason": finish}])


def _text_chunk(choices: list[dict[str, Any]], **more: object) -> bytes:
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": "m"}
    return _frame({**head, "choices": choices, **more})


def _completions() -> list[Case]:
    plain = _text("Once") + _text(" upon") + _text("", finish="length")
    two = _text("a") + _text("b", index=1) + _text("", finish="stop") + _text("", index=1, finish="stop")
    once = choice(text="Once upon", finish="length")
    both = [choice(text="a", finish="stop"), choice(text="b", finish="stop")]
    failed = _text("Once") + _frame({"error": ERROR})
    usage = plain + _text_chunk([], usage=USAGE)
    return [
        Case("plain", "completions", plain + DONE, reply(once)),
        Case("usage", "completions", usage + DONE, reply(once, usage=[9, 2, 11])),
        Case("two choices", "completions", two + DONE, reply(*both)),
        Case("error", "completions", failed + DONE, reply(choice(text="Once"), error="the engine stopped")),
    ]
