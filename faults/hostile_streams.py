"""Malicious streams of any size; `size` counts what grows in them."""

from collections.abc import Callable, Iterator
from math import isqrt
from typing import NamedTuple

import msgspec

from welldone.mock.script import CHUNK_TEMPLATE, HELLO_REPLY, JSON_HEADERS, MockChunk, MockReply

_ROLE, _TEXT, _STOP, _DONE = HELLO_REPLY.pieces
_ENVELOPE = 'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"scripted",%s}\n\n'
_TOGETHER = 256  # chunks per write: single writes would measure the sender


class Kind(NamedTuple):
    """Kind of malicious stream."""

    name: str
    size: int
    """Size at which a careless server takes some seconds."""
    make: Callable[[int], MockReply]


def _delta(**fields: object) -> str:
    return CHUNK_TEMPLATE % (msgspec.json.encode(fields).decode(), "null")


def _call(**fields: object) -> str:
    return _delta(tool_calls=[{"index": 0, **fields}])


def _stream(chunks: Iterator[str] | list[str]) -> MockReply:
    """Wrap the chunks in a valid beginning and end."""
    texts = list(chunks)
    pieces = ["".join(texts[at : at + _TOGETHER]) for at in range(0, len(texts), _TOGETHER)]
    return MockReply((_ROLE, *map(MockChunk, pieces), _STOP, _DONE))


def _same(chunk: str) -> Callable[[int], MockReply]:
    """Repeat one chunk."""
    return lambda size: MockReply((_ROLE, *[MockChunk(chunk, times=_TOGETHER)] * (size // _TOGETHER), _STOP, _DONE))


def _raw(before: str, unit: str, after: str) -> Callable[[int], MockReply]:
    """Build one frame with a repeated element."""
    return lambda size: MockReply(
        (_ROLE, MockChunk(before), MockChunk(unit, times=size), MockChunk(after), _STOP, _DONE)
    )


def _cumulative(size: int) -> MockReply:
    """Each chunk repeats the whole text, as some servers do; `size` is the length of the stream."""
    return _stream(_delta(content="word " * number) for number in range(isqrt(size)))


def _choices(size: int) -> MockReply:
    return _stream(
        _ENVELOPE % f'"choices":[{{"index":{number},"delta":{{"content":"x"}},"finish_reason":null}}]'
        for number in range(size)
    )


def _calls(size: int) -> MockReply:
    function = {"name": "f", "arguments": "{}"}
    return _stream(
        _delta(tool_calls=[{"index": number, "id": f"c{number}", "type": "function", "function": function}])
        for number in range(size)
    )


def _arguments(text: str) -> Callable[[int], MockReply]:
    """A tool call with endless arguments in small pieces."""

    def make(size: int) -> MockReply:
        first = _call(id="c", type="function", function={"name": "f", "arguments": ""})
        more = _call(function={"arguments": text})
        return _stream([first, *[more] * size])

    return make


def _fields(size: int) -> MockReply:
    return _stream([_delta(content="x", **{f"field{number}": number for number in range(size)})])


def _whole(size: int) -> MockReply:
    """Build a long buffered reply."""
    data = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"' + b"<" * size + b'"},'
    return MockReply((MockChunk(base64=data + b'"finish_reason":"stop"}]}'),), headers=JSON_HEADERS, framing="length")


_BEFORE = 'data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
_USAGE = _ENVELOPE % '"choices":[],"usage":{"prompt_tokens":%s,"completion_tokens":%s,"total_tokens":%s}'

KINDS: tuple[Kind, ...] = (
    Kind("a text of brackets", 2**20, _raw(_BEFORE + '{"content":"', "{", '"}}]}\n\n')),
    Kind("a text of <", 2**20, _raw(_BEFORE + '{"content":"', "<", '"}}]}\n\n')),
    Kind("brackets, one at a time", 5_000, _same(_delta(content="{"))),
    Kind("<, one at a time", 5_000, _same(_delta(content="<"))),
    Kind("thoughts that open again and again", 5_000, _same(_delta(content="<think>"))),
    Kind("thoughts that close again and again", 5_000, _same(_delta(content="</think>"))),
    Kind("thoughts of <", 5_000, _same(_delta(reasoning_content="<"))),
    Kind("calls in the text", 5_000, _same(_delta(content='<tool_call>{"name":'))),
    Kind("white space", 5_000, _same(_delta(content=" \n"))),
    Kind("all that was said, again and again", 2**21, _cumulative),
    Kind("arguments of brackets", 5_000, _arguments("{")),
    Kind("arguments of quotes", 5_000, _arguments('"\\')),
    Kind(
        "arguments in one frame",
        2**20,
        _raw(_BEFORE + '{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"', "[", '"}}]}}]}\n\n'),
    ),
    Kind("a name in pieces", 5_000, _same(_call(function={"name": "n"}))),
    Kind("calls", 5_000, _calls),
    Kind("choices", 5_000, _choices),
    Kind(
        "an id of a megabyte",
        2**20,
        _raw('data: {"id":"', "i", '","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'),
    ),
    Kind("a role, again and again", 5_000, _same(_delta(role="assistant"))),
    Kind("an end, again and again", 5_000, _same(CHUNK_TEMPLATE % ("{}", '"stop"'))),
    Kind("nothing, again and again", 5_000, _same(CHUNK_TEMPLATE % ("{}", "null"))),
    Kind("empty frames", 25_000, _same("data:\n\n")),
    Kind("empty lines", 2**18, _same("\n")),
    Kind("comments", 25_000, _same(": wait\n\n")),
    Kind("events of other kinds", 12_000, _same("event: x\nid: 1\nretry: 1\ndata: {}\n\n")),
    Kind("deep JSON", 2**18, _raw("data: ", '{"a":', "\n\n")),
    Kind("deep lists", 2**18, _raw(_BEFORE + '{"content":"x","extra":', "[", "\n\n")),
    Kind("JSON that is none", 5_000, _same("data: {'choices': [{'index': 0, 'delta': {'content': 'x'}}]}\n\n")),
    Kind("a frame without end", 18 * 2**20, _raw("data: ", "x", "\n\n")),
    Kind("a line of many lines", 2**15, _raw("", "data: x\n", "\n")),
    Kind(
        "log probabilities",
        12_000,
        _raw(
            _BEFORE + '{"content":"x"},"logprobs":{"content":[',
            '{"token":"x","logprob":-1,"bytes":[120],"top_logprobs":[]},',
            '{"token":"x","logprob":-1,"bytes":[120],"top_logprobs":[]}]}}]}\n\n',
        ),
    ),
    Kind("unknown fields", 5_000, _fields),
    Kind("counts of many digits", 4_000, lambda size: _stream([_USAGE % (("9" * size,) * 3)])),
    Kind(
        "counts that are no numbers",
        1,
        lambda size: _stream(
            [_USAGE % (("NaN",) * 3), _USAGE % (("-1", "1e999", '"x"')), _USAGE % (("{}", "[]", "null"))]
        ),
    ),
    Kind("errors, again and again", 5_000, _same('data: {"error":{"message":"no"}}\n\n')),
    Kind("halves of characters", 5_000, _same(CHUNK_TEMPLATE % ('{"content":"\\ud83d"}', "null"))),
    Kind(
        "bytes that are no text",
        5_000,
        lambda size: MockReply(
            (
                _ROLE,
                MockChunk(base64=b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe"}}]}\n\n', times=size),
                _STOP,
                _DONE,
            )
        ),
    ),
    Kind("one object instead of a stream", 2**20, _whole),
)
