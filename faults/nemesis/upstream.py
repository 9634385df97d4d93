"""An upstream in a process of its own, so that it can be killed and stopped: `python -m faults.nemesis.upstream a 1`.

It says `marker:tag:number` for the marker of each request, where the tag names this attempt, and does what the order in
the request's text says. At SIGUSR1 it begins to answer with garbage, at SIGUSR2 it is well again.
"""

import asyncio
import signal
import sys
from collections.abc import Iterator

import msgspec

from faults.nemesis.order import Json, Order, read_order
from welldone.mock.faults import FAULT_REPLIES, error_reply
from welldone.mock.script import MockChunk, MockReply, MockScript, ReplyEnd, cut_at, json_reply
from welldone.mock.server import MockHttpRequest, MockServer

GARBAGE = ("garbage", "html", "not-http", "gzip", "empty", "redirect-307")
"""Replies of a server that is not what it should be. None says a word of an answer."""
REFUSALS = ("broken", "limited-silent", "unavailable-silent", "close-first", "reset-first", "hang-first", "cut-head")
BREAKS: dict[str, ReplyEnd] = {"cut": "cut", "reset": "reset", "hang": "hang"}
"""Ends in the midst of an answer."""
FAULT_NAMES = (*GARBAGE, *REFUSALS, *BREAKS, "error-event")
SHAPES = (
    "plain",
    "role-always",
    "no-finish",
    "no-done",
    "usage-first",
    "crlf",
    "split",
    "whole",
    "comments",
    "no-length",
    "close-after",
    "joined",
)
_SPLIT_BYTES = 7  # less than any frame, and no divisor of what it cuts
_HEAD = {"id": "chatcmpl-1", "created": 1, "model": "nemesis"}
_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class Actor:
    """Who chooses the replies of an upstream."""

    def __init__(self, name: str, life: str) -> None:
        self.is_garbage = False
        self._name = name
        self._life = life
        self._count = 0

    def choose(self, seen: MockHttpRequest) -> MockReply:
        """The reply that the request orders."""
        self._count += 1
        if self.is_garbage:
            return FAULT_REPLIES[GARBAGE[self._count % len(GARBAGE)]]
        try:
            order = read_order(msgspec.json.decode(seen.body))
        except (ValueError, KeyError, TypeError):
            return error_reply(418, "there is no order in this request")  # which nobody else says, so that it is found
        tag = f"{self._name}{self._life}-{self._count}"
        return reply(order, tag, self._name, is_chat=seen.path.endswith("/chat/completions"))


def reply(order: Order, tag: str, name: str, *, is_chat: bool) -> MockReply:
    """What the upstream of this name answers."""
    fault = order.fault if name in order.faulty else ""
    if fault in GARBAGE or fault in REFUSALS:
        return FAULT_REPLIES[fault]
    whole = _whole(order, tag, is_chat=is_chat) if order.shape == "whole" else _stream(order, tag, is_chat=is_chat)
    if fault in BREAKS:
        return cut_at(whole, int(order.at * len(whole.body)), BREAKS[fault])
    if fault == "error-event" and order.shape != "whole":
        before = whole.pieces[: int(order.at * len(whole.pieces))]
        if order.shape == "split":  # the frames before it must be whole
            before = ()
        return msgspec.structs.replace(
            whole, pieces=(*before, MockChunk('data: {"error":{"message":"out of memory"}}\n\n'))
        )
    return whole


def _whole(order: Order, tag: str, *, is_chat: bool) -> MockReply:
    text = order.text(tag)
    said = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
    kind = "chat.completion" if is_chat else "text_completion"
    return json_reply(
        {**_HEAD, "object": kind, "choices": [{"index": 0, **said, "finish_reason": "stop"}], "usage": _USAGE}
    )


def _stream(order: Order, tag: str, *, is_chat: bool) -> MockReply:
    frames = list(_frames(order, tag, is_chat=is_chat))
    if order.shape == "crlf":
        frames = [frame.replace("\n", "\r\n") for frame in frames]
    pieces = tuple(MockChunk(frame, after_s=order.pause_s) for frame in frames)
    made = MockReply(pieces)
    if order.shape == "joined":
        return MockReply((MockChunk("".join(frames)),))
    if order.shape == "split":
        data = made.body
        return MockReply(
            tuple(MockChunk(base64=data[at : at + _SPLIT_BYTES]) for at in range(0, len(data), _SPLIT_BYTES))
        )
    if order.shape == "no-length":
        return msgspec.structs.replace(made, framing="close")
    return msgspec.structs.replace(made, end="close") if order.shape == "close-after" else made


def _frames(order: Order, tag: str, *, is_chat: bool) -> Iterator[str]:
    if order.shape == "usage-first":
        yield _frame([], is_chat=is_chat, usage=_USAGE)
    if is_chat:
        yield _frame([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}], is_chat=True)
    for number in range(order.tokens):
        text = order.token(tag, number)
        role = {"role": "assistant"} if order.shape == "role-always" else {}
        said = {"delta": {**role, "content": text}} if is_chat else {"text": text}
        if order.shape == "comments":
            yield ": still here\n\n"
        yield _frame([{"index": 0, **said, "finish_reason": None}], is_chat=is_chat)
    if order.shape != "no-finish":
        last: Json = {"delta": {}} if is_chat else {"text": ""}
        yield _frame([{"index": 0, **last, "finish_reason": "stop"}], is_chat=is_chat)
    if order.shape != "no-done":
        yield "data: [DONE]\n\n"


def _frame(choices: list[object], *, is_chat: bool, **more: object) -> str:
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    return f"data: {msgspec.json.encode({**_HEAD, 'object': kind, 'choices': choices, **more}).decode()}\n\n"


async def serve(name: str, life: str) -> None:
    """Serve on a port that is told on standard output, until killed."""
    actor = Actor(name, life)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: setattr(actor, "is_garbage", True))
    loop.add_signal_handler(signal.SIGUSR2, lambda: setattr(actor, "is_garbage", False))
    async with await MockServer(MockScript(), actor.choose).listen() as scripted:
        sys.stdout.write(f"{scripted.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:3]))
