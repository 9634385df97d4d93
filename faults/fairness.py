"""The most expensive requests and replies on every endpoint, next to a stream that must not be delayed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import CHAT, ClientReply, chat, exchange, post, send_request
from faults.dialects import COMPLETIONS, MESSAGES, OLLAMA_CHAT, OLLAMA_GENERATE, RESPONSES
from faults.floods import FLOODS
from faults.heartbeat import NOTHING, beating, listening, sending
from faults.peak import Peak
from tests.support.server import Running
from tests.support.upstream import gateway, upstream
from welldone.mock.script import HELLO_REPLY, JSON_HEADERS, MockChunk, MockReply
from welldone.mock.server import MockHttpRequest

HELD_UP_MS = 50
"""Longest gap of a stream, less that of the idle server."""
TRIES = 5
"""Attempts of each request; the longest gap counts."""
_ALL_TRIES = 20
"""The same with those whose gap is too long, and during which the hypervisor ran another machine: they do not count."""
TOO_LONG = 2.5
"""Of these sizes, a frame is too long: 15 MB."""
BODY_BYTES = 4_000_000
FRAME_BYTES = 6_200_000
"""Slightly below the maximum size of a body and of a frame."""
STATUSES = frozenset((200, 400, 404, 413, 429, 502))
"""Accepted statuses: success, client errors and bad upstream replies, but no internal error."""
LINT = "/page/api/lint"
PATHS = {
    CHAT: '"messages":[{"role":"user","content":"hi"}],"max_tokens":4',
    COMPLETIONS: '"prompt":"hi","max_tokens":4',
    RESPONSES: '"input":"hi","store":false',
    MESSAGES: '"messages":[{"role":"user","content":"hi"}],"max_tokens":4',
    OLLAMA_CHAT: '"messages":[{"role":"user","content":"hi"}],"stream":false',
    OLLAMA_GENERATE: '"prompt":"hi","stream":false',
    "/v1/embeddings": '"input":"hi"',
    "/v1/rerank": '"query":"q","documents":["a"]',
    "/tokenize": '"content":"hi"',
    "/detokenize": '"tokens":[1]',
    "/v1/messages/count_tokens": '"messages":[{"role":"user","content":"hi"}]',
    "/v1/responses/input_tokens": '"input":"hi"',
    LINT: '"capture":"data: {}"',
    "/models/load": '"load":true',
}
"""Every path with a body, and its required fields."""


class Value(NamedTuple):
    """A JSON value of any length that is expensive to decode."""

    name: str
    before: str
    unit: str
    after: str
    most: int = 10**9
    """As many units as a request may have."""

    def text(self, size: int) -> str:
        """Return the value with this size in bytes."""
        count = min(self.most, size // len(self.unit.encode()))
        return self.before + self.unit * count + self.after


VALUES = (
    Value("numbers that are almost nothing", "[", "8.5e-323,", "1]"),
    Value("as many of them as are taken", "[", "8.5e-323,", "1]", 4_000),
    Value("decimals between two", "[", "9007199254740993.0,", "1]", 49_000),
    Value("numbers of 250 digits", "[", "9" * 250 + ",", "1]"),
    Value("numbers", "[", "1,", "1]", 990_000),
    Value("lists", "[", "[],", "1]"),
    Value("as many lists as are taken", "[", "[1],", "1]", 49_000),
    Value("objects", "[", '{"":1},', "1]", 49_000),
    Value("texts", "[", '"",', "1]", 74_000),
    Value("brackets", "", "[", ""),
    Value("60 levels", "[", "[" * 60 + "]" * 60 + ",", "1]", 800),
    Value("escapes", '"', "\\n", '"'),
    Value("escaped emoji", '"', "\\ud83d\\ude00", '"'),
    Value("half emoji", '"', "\\ud83d", '"'),
    Value("letters", '"', "a", '"'),
    Value("quotes", '"', '\\"', '"'),
    Value("umlauts", '"', "ä", '"'),
    Value("less-than signs", '"', "<", '"'),
)
_CALL = '"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":%s}}]}'
_ENVELOPE = '{"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,%s}]}'
_NAMES = "{" + ",".join(f'"name{number}":1' for number in range(74_000)) + "}"


def requests(size: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield requests that are expensive to parse: name, path and body."""
    texts = {value.name: value.text(size) for value in VALUES} | {"names": _NAMES[:size]}
    for path, needed in PATHS.items():
        for name, text in texts.items():
            yield f"{name} for {path}", path, f'{{"model":"hello",{needed},"extra":{text}}}'.encode()
        yield f"a list as model for {path}", path, f'{{{needed},"model":{VALUES[4].text(size)}}}'.encode()
    yield from _lists(size)
    for value in VALUES:
        frame = f'data: {{"choices":[{{"index":0,"delta":{{"content":{value.text(size // 3)}}}}}]}}\n\n'
        yield f"a capture of {value.name}", LINT, msgspec.json.encode({"capture": frame})


def _lists(size: int) -> Iterator[tuple[str, str, bytes]]:
    """Long lists in the list fields of each path."""
    for path in (CHAT, MESSAGES, OLLAMA_CHAT, RESPONSES):
        field = "input" if path == RESPONSES else "messages"
        for role in ("system", "user", "assistant"):
            message = {"role": role, "content": "x"}
            for count in (4_000, 16_000, 37_000):
                many = [message] * (count * size // BODY_BYTES) + [{"role": "user", "content": "x"}]
                body = {"model": "hello", "max_tokens": 4, "store": False, "stream": False, field: many}
                yield f"{count:,} messages of {role} for {path}", path, msgspec.json.encode(body)
    tool = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(100)}}
    for path in (CHAT, MESSAGES, RESPONSES):
        named = [{"name": f"f{number}", "parameters": tool, "input_schema": tool} for number in range(120)]
        tools = [{"type": "function", "function": one, **one} for one in named]
        needed = msgspec.json.decode(f"{{{PATHS[path]}}}")
        yield f"120 tools for {path}", path, msgspec.json.encode({"model": "hello", "tools": tools, **needed})


def frames(size: int) -> dict[str, Callable[[], MockReply]]:
    """Expensive upstream replies by name: one frame in a valid stream, or a buffered reply. Built on demand."""
    members: dict[str, Callable[[], str]] = {}
    for value in VALUES:
        text = partial(value.text, size)
        members[f"{value.name} beside"] = partial(_filled, '"delta":{"content":"x"},"extra":%s', text)
        if value.before == '"':
            members[f"{value.name} as text"] = partial(_filled, '"delta":{"content":%s}', text)
            members[f"{value.name} as arguments"] = partial(_filled, _CALL, text)
    members["names beside"] = partial(_filled, '"delta":{"content":"x"},"extra":%s', lambda: _NAMES[:size])
    for count in (5_000, size // 64):
        entries = Value("", "[", '{"token":"x","logprob":-1.5,"bytes":[120],"top_logprobs":[]},', "{}]", count).text
        filled = partial(_filled, '"delta":{"content":"x"},"logprobs":{"content":%s}', partial(entries, 2 * size))
        members[f"{count:,} log probabilities"] = filled
    out: dict[str, Callable[[], MockReply]] = {
        f"a frame of {name}": partial(_frame, text) for name, text in members.items()
    }
    for name in ("letters as text", "escapes as arguments", "umlauts as text", "brackets beside", "names beside"):
        out[f"a frame with CRLF of {name}"] = partial(_crlf_frame, members[name])
    out |= {f"a whole reply of {name}": partial(_whole, text) for name, text in members.items()}
    bad = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'
    out["a frame that is no UTF-8"] = lambda: _stream(bad % (b"\xff" * size))
    out["many frames that are no UTF-8"] = lambda: _stream(bad % b"\xff" * (size // 400))
    out["a frame of lines"] = lambda: _stream(b"x\n" * (size // 2) + b"\n")
    out["a frame of data lines"] = lambda: _stream(b"data: 1\n" * (size // 80) + b"\n")
    out["empty frames"] = lambda: _stream(b"data:\n\n" * (size // 70))
    out["comments"] = lambda: _stream(b": x\n" * (size // 60) + b"\n")
    out["comments by themselves"] = lambda: _stream(b":\n\n" * (size // 60))
    out["unknown fields by themselves"] = lambda: _stream(b"x\n\n" * (size // 60))
    numbers = partial(VALUES[0].text, int(TOO_LONG * size))
    for name, make in (("a frame", _frame), ("a whole reply", _whole)):
        out[f"{name} that is too long, of {VALUES[0].name}"] = partial(
            make, partial(_filled, '"delta":{"content":"x"},"extra":%s', numbers)
        )
    return out


def _filled(form: str, text: Callable[[], str]) -> str:
    return form % text()


def _frame(members: Callable[[], str]) -> MockReply:
    return _stream(b"data: " + (_ENVELOPE % members()).encode() + b"\n\n")


def _crlf_frame(members: Callable[[], str]) -> MockReply:
    return _stream(b"event: message\r\ndata: " + (_ENVELOPE % members()).encode() + b"\r\n\r\n")


def _whole(members: Callable[[], str]) -> MockReply:
    chunk = (_ENVELOPE % members()).encode()
    whole = chunk.replace(b'"delta":{', b'"finish_reason":"stop","message":{"role":"assistant",')
    return MockReply((MockChunk(base64=whole),), headers=JSON_HEADERS, framing="length")


def _stream(frame: bytes) -> MockReply:
    role, _, stop, done = HELLO_REPLY.pieces
    return MockReply((role, MockChunk(base64=frame), stop, done))


class Request(NamedTuple):
    """What a client sends, and what is wrong with the reply."""

    name: str
    data: bytes
    problem: Callable[[ClientReply], str | None]
    at_once: int = 1
    first_size: int = 0
    """As in `Sending`."""


def floods(context: CaseContext) -> Outcome:
    """Run every flood, one after the other."""
    return _run(context, {}, partial(_floods, context), has_limited_memory=True)


def turns(context: CaseContext) -> Outcome:
    """Run every request, one after the other."""
    return _run(context, {}, partial(_requests, context))


def replies(context: CaseContext) -> Outcome:
    """Run every reply of an upstream, one after the other."""
    upstream_replies = frames(context.times(FRAME_BYTES, 60_000))
    return _run(context, upstream_replies, partial(_replies, context, list(upstream_replies)))


def _run(
    context: CaseContext,
    upstream_replies: dict[str, Callable[[], MockReply]],
    make: Callable[[Running], AsyncIterator[Request]],
    *,
    has_limited_memory: bool = False,
) -> Outcome:
    names = list(upstream_replies)

    def choose(seen: MockHttpRequest) -> MockReply:
        body, seen.body = seen.body, ""
        start = body.find('"model":"frame ')
        if start < 0:
            return HELLO_REPLY
        return upstream_replies[names[int(body[start + 15 : body.index('"', start + 15)])]]()

    heartbeat = '[upstreams.heartbeat]\nurl = "%s"\nmodels = ["heartbeat"]\nprobe_s = 0\n'
    with (
        beating() as beats,
        upstream(choose) as fine,
        gateway(context.folder, fine.url, more=heartbeat % beats) as server,
    ):
        problems, worst, growth = asyncio.run(_send_all(context, server, make(server)))
    figures = (
        Figure("wrong responses", len(problems), most=0),
        Figure(
            "longest pause of the other stream", max(worst.values(), default=0.0), "ms", most=HELD_UP_MS, is_timing=True
        ),
        *([growth] if has_limited_memory else []),
    )
    return Outcome(
        len(worst), f"slowest: {max(worst, key=worst.__getitem__, default='none')}", figures, tuple(problems)
    )


async def _send_all(
    context: CaseContext, server: Running, requests: AsyncIterator[Request]
) -> tuple[list[str], dict[str, float], Figure]:
    """Send each request some times. Returns problems, the longest gaps of the stream by request, and the memory."""
    problems: list[str] = []
    peak = Peak(server)
    async with sending() as sender, listening(server, chat("heartbeat")) as recorder:
        async for request in requests:
            context.note(request.name)
            counted = 0
            for _ in range(_ALL_TRIES):
                await recorder.beat(request.name)
                received = await sender.send(server.port, request.data, request.at_once, request.first_size)
                problems.extend(f"{request.name}: {why}" for reply in received if (why := request.problem(reply)))
                counted += await recorder.beat(NOTHING, HELD_UP_MS)
                if counted == context.times(TRIES, 1):
                    break
            if not counted:
                problems.append(f"{request.name}: the hypervisor interrupted each of {_ALL_TRIES} attempts")
    recorder.worst.pop(NOTHING, None)
    return problems, recorder.worst, peak.growth()


async def _floods(context: CaseContext, server: Running) -> AsyncIterator[Request]:
    key = b"Authorization: Bearer %b\r\n" % (server.key or "").encode()
    for flood in FLOODS:
        data = flood.make(context.times(flood.size, flood.size // 20), key)
        first_size = data.index(b"\r\n\r\n") + 4 if flood.is_socket else 0
        problem = partial(_flood_problem, flood.expected)
        yield Request(flood.name, data, problem, flood.at_once, first_size)


async def _requests(context: CaseContext, server: Running) -> AsyncIterator[Request]:
    every = context.times(1, 31)
    for index, (name, path, body) in enumerate(requests(context.times(BODY_BYTES, 60_000))):
        if index % every == 0:
            yield _post(server, name, path, body)
    for request in await _references(server):
        yield request


async def _replies(context: CaseContext, names: list[str], server: Running) -> AsyncIterator[Request]:
    every = context.times(1, 31)
    for index, name in enumerate(names):
        for number, path in enumerate((CHAT, MESSAGES, RESPONSES, OLLAMA_CHAT)):
            if (index + number) % every == 0:
                for is_stream in (True, False):
                    needed = msgspec.json.decode(f"{{{PATHS[path]}}}")
                    body = msgspec.json.encode({**needed, "model": f"frame {index}", "stream": is_stream})
                    yield _post(server, f"{name}, {path}{' as a stream' if is_stream else ''}", path, body)


def _post(server: Running, name: str, path: str, body: bytes) -> Request:
    return Request(name, post(body, server.port, path=path, key=server.key), _problem)


async def _references(server: Running) -> list[Request]:
    """References to the items of a response that was stored, and its continuation."""
    items = [{"role": "user", "content": "x" * 200}] * 8_000
    made = await send_request(server, msgspec.json.encode({"model": "hello", "input": items}), path=RESPONSES)
    name = msgspec.json.decode(made.body)["id"]
    first = f"msg_{name.removeprefix('resp_')}_in0"
    head = f"GET {RESPONSES}/{name}/input_items?limit=100 HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
    listed = f"{head}Connection: close\r\nAuthorization: Bearer {server.key}\r\n\r\n"
    received = await exchange(server.port, listed.encode())
    assert received.status == 200
    inputs: dict[str, dict[str, object]] = {
        f"{count:,} references": {"input": [{"id": first}] * count} for count in (200, 1_000, 16_000)
    }
    inputs["a response that goes on"] = {"input": "x", "previous_response_id": name}
    return [
        _post(server, title, RESPONSES, msgspec.json.encode({"model": "hello", **members}))
        for title, members in inputs.items()
    ]


def _problem(received: ClientReply) -> str | None:
    if received.status in STATUSES and received.is_whole:
        return None
    return f"{received.status}, {'' if received.is_whole else 'broken off, '}{received.body[:150]!r}"


def _flood_problem(expected: bytes, received: ClientReply) -> str | None:
    if expected in (received.head + received.body).lower() and received.status:
        return None
    return f"{received.status}, …{received.body[-150:]!r}"


CASES = (
    Case("turns-floods", "thousands of small requests, frames and chunks at once, next to a stream", floods),
    Case("turns", "the most expensive requests on every endpoint, next to a stream", turns),
    Case("turns-replies", "the most expensive replies of an upstream in every dialect, next to a stream", replies),
)
