"""An upstream in its own process, which can be killed and stopped: `python -m faults.nemesis.upstream a 1`.

It sends `marker:tag:number` for the marker of each request, where the tag names the attempt, and follows the
`UpstreamAction` in the text of the request. SIGUSR1 makes it reply with garbage, SIGUSR2 ends that.
"""

import asyncio
import signal
import sys
from collections.abc import Iterator, Sequence

import msgspec

from faults.nemesis.upstream_actions import Json, UpstreamAction, read_upstream_action
from welldone.mock.script import MockChunk, MockReply, MockScript, ReplyEnd, cut_at, json_reply
from welldone.mock.server import MockHttpRequest, MockServer
from welldone.mock.variants import FAULT_REPLIES, error_reply

GARBAGE = ("garbage", "html", "not-http", "gzip", "empty", "redirect-307")
"""Replies of a broken server, without any text."""
REFUSALS = ("broken", "limited-silent", "unavailable-silent", "close-first", "reset-first", "hang-first", "cut-head")
BREAKS: dict[str, ReplyEnd] = {"cut": "cut", "reset": "reset", "hang": "hang"}
"""Ways to end within an answer."""
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
_SPLIT_BYTES = 7  # shorter than any frame, and not a divisor of its length
_HEAD = {"id": "chatcmpl-1", "created": 1, "model": "nemesis"}
_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class Actor:
    """Selects the replies of an upstream."""

    def __init__(self, name: str, life: str) -> None:
        self.is_garbage = False
        self._name = name
        self._life = life
        self._count = 0

    def choose(self, seen: MockHttpRequest) -> MockReply:
        """Build the reply that the request specifies."""
        self._count += 1
        if self.is_garbage:
            return FAULT_REPLIES[GARBAGE[self._count % len(GARBAGE)]]
        try:
            order, prefix = read_upstream_action(msgspec.json.decode(seen.body))
        except (ValueError, KeyError, TypeError):
            return error_reply(418, "there is no order in this request")  # unique, so that it is found
        tag = f"{self._name}{self._life}-{self._count}"
        return reply(order, tag, self._name, is_chat=seen.path.endswith("/chat/completions"), prefix=prefix)


def reply(order: UpstreamAction, tag: str, name: str, *, is_chat: bool, prefix: str = "") -> MockReply:
    """Reply of the upstream with this name, which continues the prefix."""
    fault = order.fault if name in order.faulty else ""
    if fault in GARBAGE or fault in REFUSALS:
        return FAULT_REPLIES[fault]
    pieces = _pieces(order, tag, "" if order.ignores_prefill else prefix, parts=2 if name == "b" else 1)
    whole = _whole(pieces, is_chat=is_chat) if order.shape == "whole" else _stream(order, pieces, is_chat=is_chat)
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


def _pieces(order: UpstreamAction, tag: str, prefix: str, *, parts: int) -> list[str]:
    """The text after the prefix, with so many pieces per token."""
    if order.is_repeatable:
        tag = ""
    elif prefix.startswith(f"{order.marker}:"):  # all tokens of an answer have the tag of its first attempt
        tag = prefix.removeprefix(f"{order.marker}:").partition(":")[0]
    if not order.text(tag).startswith(prefix):
        return [f"asked to continue another text: …{prefix[-60:]}"]
    pieces, skipped = [], len(prefix)
    for number in range(order.tokens):
        token = order.token(tag, number)
        rest, skipped = token[skipped:], max(0, skipped - len(token))
        half = len(rest) // parts
        pieces += [piece for piece in (rest[:half], rest[half:]) if piece]
    return pieces


def _whole(pieces: Sequence[str], *, is_chat: bool) -> MockReply:
    text = "".join(pieces)
    content = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
    kind = "chat.completion" if is_chat else "text_completion"
    return json_reply(
        {**_HEAD, "object": kind, "choices": [{"index": 0, **content, "finish_reason": "stop"}], "usage": _USAGE}
    )


def _stream(order: UpstreamAction, texts: Sequence[str], *, is_chat: bool) -> MockReply:
    frames = list(_frames(order, texts, is_chat=is_chat))
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


def _frames(order: UpstreamAction, texts: Sequence[str], *, is_chat: bool) -> Iterator[str]:
    if order.shape == "usage-first":
        yield _frame([], is_chat=is_chat, usage=_USAGE)
    if is_chat:
        yield _frame([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}], is_chat=True)
    for text in texts:
        role = {"role": "assistant"} if order.shape == "role-always" else {}
        content = {"delta": {**role, "content": text}} if is_chat else {"text": text}
        if order.shape == "comments":
            yield ": still here\n\n"
        yield _frame([{"index": 0, **content, "finish_reason": None}], is_chat=is_chat)
    if order.shape != "no-finish":
        last: Json = {"delta": {}} if is_chat else {"text": ""}
        yield _frame([{"index": 0, **last, "finish_reason": "stop"}], is_chat=is_chat)
    if order.shape != "no-done":
        yield "data: [DONE]\n\n"


def _frame(choices: list[object], *, is_chat: bool, **more: object) -> str:
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    return f"data: {msgspec.json.encode({**_HEAD, 'object': kind, 'choices': choices, **more}).decode()}\n\n"


async def serve(name: str, life: str) -> None:
    """Serve until killed; print the port to standard output."""
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
