"""Upstream replies that violate HTTP: none may leak into another response or pass as complete."""

import asyncio
import json
from itertools import product
from typing import NamedTuple

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import ClientReply, Ending, chat, send_request
from tests.support.server import Running
from tests.support.upstream import gateway, upstream
from welldone.mock.script import HELLO_REPLY, MockChunk, MockReply, ReplyEnd
from welldone.mock.server import MockHttpRequest

MARK = b"poisoned"
POISON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n" + b'"%b"' % MARK
"""An unsolicited reply; a client that receives its marker got it from another connection."""
FIRST = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
WHOLE = HELLO_REPLY.body
CHUNKS = b"%x\r\n%b\r\n" % (len(WHOLE), WHOLE)
SENT = CHUNKS + b"0\r\n\r\n"
EARLY = b"HTTP/1.1 100 Continue\r\n\r\n" * 1000

FINE: tuple[Ending, ...] = ("whole",)
NEVER: tuple[Ending, ...] = ("refused", "error event")
EITHER: tuple[Ending, ...] = (*FINE, *NEVER)
STATUSES = (200, 502, 504)


class Odd(NamedTuple):
    """Reply of an upstream, and the accepted endings."""

    name: str
    sent: bytes
    right: tuple[Ending, ...] = NEVER
    end: ReplyEnd = "close"
    more: bytes = b""
    """Sent after it repeatedly."""

    @property
    def reply(self) -> MockReply:
        """Build the scripted reply."""
        pieces = [MockChunk(base64=data) for data in (self.sent, self.more) if data]
        return MockReply(tuple(pieces), raw=True, end=self.end)


def _first_lines() -> list[Odd]:
    odd = [b"HTTP/1.1 abc OK", b"HTTP/1.1 20 OK", b"HTTP/1.1 99999 OK", b"HTTP/1.1 -200 OK", b"ICY 200 OK", b"HTTP/1.1"]
    odd += [b"HTTP/1.1 200 OK\x00", b"\x00HTTP/1.1 200 OK", b"HTTP/1.1  200 OK", b"GET / HTTP/1.1"]
    return [Odd(repr(line), line + FIRST[15:] + CHUNKED + b"\r\n" + SENT, EITHER) for line in odd]


def _lengths() -> list[Odd]:
    size = len(WHOLE)
    both = f"Content-Length: {size}\r\n".encode()
    odd = ["-1", "+10", "0x10", "1 0", "1,2", "zero", "", str(2**64), "9" * 400]
    return [
        *(
            Odd(f"Content-Length: {one[:20]!r}", FIRST + f"Content-Length: {one}\r\n\r\n".encode() + WHOLE)
            for one in odd
        ),
        Odd("two lengths", FIRST + both + b"Content-Length: 5\r\n\r\n" + WHOLE),
        Odd("a length and chunks", FIRST + both + CHUNKED + b"\r\n" + SENT, EITHER),
        Odd("chunks, then identity", FIRST + CHUNKED + b"Transfer-Encoding: identity\r\n\r\n" + SENT, EITHER),
        Odd("xchunked", FIRST + b"Transfer-Encoding: xchunked\r\n\r\n" + SENT, EITHER),
    ]


def _heads() -> list[Odd]:
    rest = CHUNKED + b"\r\n" + SENT
    long = b"X: " + b"y" * 5 * 2**20 + b"\r\n"
    return [
        Odd("a header of 5 MB", FIRST + long + rest),
        Odd("100,000 headers", FIRST + b"X: yyyyyyyy\r\n" * 100_000 + rest),
        Odd("headers without an end", FIRST, end="endless", more=b"X: y\r\n" * 1000),
        Odd("a NUL in a header", FIRST + b"X: a\x00b\r\n" + rest, EITHER),
        Odd("a bare CR in a header", FIRST + b"X: a\rb\r\n" + rest, EITHER),
        Odd("a folded header", FIRST + b"X: a\r\n b\r\n" + rest, EITHER),
        Odd("a line without a colon", FIRST + b"nothing\r\n" + rest, EITHER),
        Odd("10 early replies", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10 + FIRST + rest, EITHER),
        Odd("early replies without an end", b"HTTP/1.1 100 Continue\r\n\r\n", end="endless", more=EARLY),
        Odd("101 Switching Protocols", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + WHOLE),
        Odd("204, with a body", b"HTTP/1.1 204 No Content\r\n\r\n" + WHOLE),
    ]


def _chunks() -> list[Odd]:
    head = FIRST + CHUNKED + b"\r\n"
    odd = [b"-1", b"+5", b"0x5", b" 5", b"g", b"", b"1" + b"0" * 16, b"f" * 17]
    return [
        *(Odd(f"a chunk of {size[:20]!r} bytes", head + size + b"\r\n" + WHOLE + b"\r\n0\r\n\r\n") for size in odd),
        Odd("a chunk longer than it says", head + b"5\r\n" + WHOLE + b"\r\n0\r\n\r\n"),
        Odd("an extension", head + SENT.replace(b"\r\n", b";a=b\r\n", 1), FINE),
        Odd("an extension without an end", head + b"5;", end="endless", more=b"x" * 4096),
        Odd("trailers", head + CHUNKS + b"0\r\nSet-Cookie: a=b\r\nContent-Length: 5\r\n\r\n", EITHER),
        Odd("trailers without an end", head + CHUNKS + b"0\r\n", EITHER, end="endless", more=b"X: y\r\n" * 1000),
    ]


def _afterwards() -> list[Odd]:
    """Data that arrives with the end of the reply, on a connection that stays open.

    Data after the next request was sent is, in HTTP/1.1, the reply to that request.
    """
    size = f"Content-Length: {len(WHOLE)}\r\n\r\n".encode()
    chunked = FIRST + CHUNKED + b"\r\n" + SENT
    return [
        Odd("another reply after the chunks", chunked + POISON, FINE, end="whole"),
        Odd("another reply after its length", FIRST + size + WHOLE + POISON, FINE, end="whole"),
        Odd("bytes after the chunks", chunked + MARK * 100, FINE, end="whole"),
        Odd("half another reply", chunked + POISON[:20], FINE, end="whole"),
    ]


ALL = (*_first_lines(), *_lengths(), *_heads(), *_chunks(), *_afterwards())
BY_NAME = {f"odd-{number}": odd for number, odd in enumerate(ALL)}


def choose(seen: MockHttpRequest) -> MockReply:
    """Return the reply that the model name selects."""
    odd = BY_NAME.get(json.loads(seen.body)["model"])
    return HELLO_REPLY if odd is None else odd.reply


def _has_mark(received: ClientReply) -> bool:
    return MARK in received.head or MARK in received.body


def _describe(name: str, received: ClientReply) -> str:
    return f"{name}: {received.ending} with {received.status}: {received.body[:200]!r}"


async def send_all(context: CaseContext, server: Running) -> Outcome:
    """Send each streamed and not streamed, each followed by a normal request on the remaining connections."""
    wrong: list[str] = []
    hurt: list[str] = []
    poisoned = 0
    for (model, odd), stream in context.each([*product(BY_NAME.items(), (True, False))]):
        received = await send_request(server, chat(model, stream=stream))
        after = await send_request(server, chat("hello"))
        if received.ending not in odd.right or received.status not in STATUSES:
            wrong.append(_describe(odd.name, received))
        if after.ending != "whole" or "".join(after.texts) != "Hello":
            hurt.append(_describe(f"after {odd.name}", after))
        poisoned += _has_mark(received) or _has_mark(after)
    count = 2 * len(BY_NAME)
    return Outcome(
        count=count,
        happened=(
            f"{count - len(wrong)} of {count} replies gave the expected result: a response where they could be parsed,"
            f" otherwise an error; {count - len(hurt)} of the {count} requests that followed got their own response"
        ),
        figures=(Figure("replies that reached another request", poisoned, most=0),),
        problems=(*wrong, *hurt),
    )


def odd_replies(context: CaseContext) -> Outcome:
    """Run a gateway in front of an upstream with these replies."""
    each = {"first_byte_s": 10, "idle_s": 10}
    with upstream(choose) as one, gateway(context.folder, one.url, each=each) as server:
        return asyncio.run(send_all(context, server))


CASES = (
    Case(
        "upstream-hygiene",
        "an upstream violates HTTP: status lines, lengths, endless heads and chunks, a second response after the first",
        odd_replies,
    ),
)
