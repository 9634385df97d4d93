"""Hypothesis strategies: legal events, any events, damaged recordings, and any bytes."""

import json
from pathlib import Path

from hypothesis import strategies as st

from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import (
    ChoiceStart,
    Event,
    Failure,
    FieldLocation,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
    Usage,
)

RECORDED = Path(__file__).parent.parent / "recorded"
ENVELOPES = {
    Endpoint.CHAT: Envelope("chatcmpl-1", 1700000000, "m"),
    Endpoint.COMPLETIONS: Envelope("cmpl-1", 1700000000, "m", "fp"),
}

# Characters that often cause errors: line breaks of all kinds, quotes, control characters, astral planes.
SPECIAL_CHARACTERS = '\n\r\t"\\{}<>:\u0085\u2028\u2029\ufeff\x00\x7fé漢😀'
texts = st.text(
    alphabet=st.one_of(
        st.sampled_from(SPECIAL_CHARACTERS), st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")
    ),
    min_size=1,
    max_size=9,
)
names = st.text(alphabet="abcxyz_", min_size=1, max_size=6)
arguments = st.dictionaries(names, st.one_of(st.integers(), texts), max_size=2).map(json.dumps)
counts = st.integers(0, 10**6)
usages = st.builds(
    lambda prompt, completion, more: Usage(prompt + 1, completion, prompt + 1 + completion, more),
    counts,
    counts,
    st.sampled_from([{}, {"prompt_tokens_details": {"cached_tokens": 3}}, {"cost": 0.5}]),
)
failures = st.builds(Failure, texts, names, st.none(), st.one_of(st.none(), names), st.just({}))
extra_values = st.one_of(st.none(), texts, st.booleans(), st.lists(st.integers(), max_size=2))
extra_names = names.map(lambda name: f"x_{name}")


def _fields(prefix: str) -> st.SearchStrategy[Json]:
    return st.dictionaries(extra_names.map(lambda name: prefix + name), extra_values, min_size=1, max_size=2)


def _logprobs(endpoint: Endpoint, text: str) -> Json:
    if endpoint is Endpoint.CHAT:
        entry = {"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": []}
        return {"content": [entry], "refusal": None}
    return {"tokens": [text], "token_logprobs": [-0.5], "top_logprobs": [{text: -0.5}], "text_offset": [0]}


@st.composite
def _choice_events(draw: st.DrawFn, endpoint: Endpoint, index: int) -> list[Event]:
    """Events of one choice."""
    events: list[Event] = [ChoiceStart(index)]
    is_chat = endpoint is Endpoint.CHAT
    if is_chat:
        events += [Reasoning(index, text) for text in draw(st.lists(texts, max_size=2))]
    contents = draw(st.lists(texts, max_size=4))
    with_logprobs = bool(contents) and draw(st.booleans())
    for text in contents:
        if with_logprobs:
            events.append(Logprobs(index, _logprobs(endpoint, text)))
        if draw(st.integers(0, 5)) == 0:
            position = draw(st.sampled_from([FieldLocation.CHUNK, FieldLocation.CHOICE]))
            events.append(UnknownFields(index, position, draw(_fields("")), draw(st.booleans()) and not with_logprobs))
        events.append(Text(index, text))
        if draw(st.integers(0, 9)) == 0:
            events.append(KeepAlive(draw(st.booleans())))
    reason = draw(st.sampled_from(["stop", "length", "content_filter"]))
    if is_chat:
        events += [Refusal(index, text) for text in draw(st.lists(texts, max_size=1))]
        calls = draw(st.lists(st.tuples(names, arguments), max_size=3))
        for number, (name, arguments_text) in enumerate(calls):
            events.append(ToolCall(index, number, f"call_{index}_{number}", name))
            cut = draw(st.integers(0, len(arguments_text)))
            events += [
                ToolArguments(index, number, piece) for piece in (arguments_text[:cut], arguments_text[cut:]) if piece
            ]
        reason = "tool_calls" if calls else reason
    events.append(Finish(index, reason))
    return events


@st.composite
def legal_events(draw: st.DrawFn, endpoint: Endpoint, choices: int = 3) -> list[Event]:
    """Legal sequence of interleaved choices, with optional usage or a failure at any position."""
    queues = [draw(_choice_events(endpoint, index)) for index in range(draw(st.integers(1, choices)))]
    events: list[Event] = [queue.pop(0) for queue in queues]
    while any(queues):
        queue = draw(st.sampled_from([queue for queue in queues if queue]))
        events.append(queue.pop(0))
    if draw(st.integers(0, 4)) == 0:
        return [*events[: draw(st.integers(0, len(events)))], draw(failures)]
    return events + ([draw(usages)] if draw(st.booleans()) else [])


_indexes = st.integers(0, 2)
_numbers = st.integers(-1, 3)
_maybe_names = st.one_of(st.just(""), names)
_any_texts = st.one_of(
    texts, st.sampled_from(["<think>", "</think>", "<thi", "nk>", "{}", "{", "}", '{"a":', "ab", "abc"])
)

any_events: st.SearchStrategy[list[Event]] = st.lists(
    st.one_of(
        st.builds(ChoiceStart, _indexes),
        st.builds(Text, _indexes, _any_texts),
        st.builds(Reasoning, _indexes, _any_texts),
        st.builds(Refusal, _indexes, texts),
        st.builds(ToolCall, _indexes, _numbers, st.sampled_from(["", "a", "b"]), _maybe_names),
        st.builds(ToolArguments, _indexes, _numbers, _any_texts),
        st.builds(lambda index: Logprobs(index, _logprobs(Endpoint.CHAT, "x")), _indexes),
        st.builds(Finish, _indexes, st.sampled_from(["stop", "length", "tool_calls"])),
        usages,
        failures,
        st.builds(KeepAlive, st.booleans()),
        st.builds(UnknownFields, _indexes, st.sampled_from(FieldLocation), _fields(""), st.booleans()),
    ),
    max_size=25,
)
"""Events in any order, as a reader may emit them."""


def recorded_streams() -> list[tuple[Endpoint, bytes]]:
    """Return the recorded streams with their endpoints."""
    streams = []
    for path in sorted(RECORDED.glob("*/*.json")):
        record = json.loads(path.read_text())
        body = path.with_suffix(".body").read_bytes()
        endpoint = Endpoint.CHAT if "chat" in record["endpoint"] else Endpoint.COMPLETIONS
        if body.startswith((b"data", b"event", b"error", b":")) and len(body) < 20_000:
            streams.append((endpoint, body))
    return streams


_REPLACEMENTS = [
    (b'"role":"assistant"', b'"role":null'),
    (b'"finish_reason":null', b'"finish_reason":""'),
    (b'"finish_reason":"stop"', b'"finish_reason":"eos"'),
    (b'"finish_reason":"length"', b'"finish_reason":"abort"'),
    (b'"index":0', b'"index":1'),
    (b'"index":0', b'"index":"0"'),
    (b'"index":0,', b""),
    (b'"delta":{}', b'"delta":null'),
    (b'"delta"', b'"message"'),
    (b'"content"', b'"reasoning_content"'),
    (b'"content"', b'"reasoning"'),
    (b'"content":"', b'"content":"<think>'),
    (b'"content":"', b'"content":"\\ud83d'),
    (b'"content":"', b'"content":"\xf0\x9f'),
    (b'"content":"', b'"text":"'),
    (b'"choices"', b'"error":null,"choices"'),
    (b'"choices"', b'"usage":{"prompt_tokens":1},"choices"'),
    (b'"choices":[', b'"choices":null,"x":['),
    (b'"created":', b'"created":1.5e3,"x":'),
    (b'"id":"', b'"id":null,"x":"'),
    (b'"arguments":"', b'"arguments":"{}'),
    (b'"name":"', b'"name":"","x":"'),
    (b'"tool_calls"', b'"function_call"'),
    (b'"type":"function"', b'"type":null'),
    (b"\n\n", b"\n"),
    (b"\n\n", b"\r\n\r\n"),
    (b"\n\n", b"\n\n: ping\n\n"),
    (b"data: ", b"data:"),
    (b"data: ", b"event: x\nid: 7\nretry: 3\ndata: "),
    (b"data: [DONE]\n\n", b""),
    (b"data: [DONE]", b"data: [DONE] "),
    (b"data: {", b"{"),
    (b"data: {", b"error: {"),
    (b"null", b"NaN"),
    (b"true", b"True"),
    (b'{"', b'{ "'),
    (b"}", b"}}"),
]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Endpoint, bytes]:
    """Recorded stream with frames dropped, duplicated or swapped, tokens replaced, and bytes changed."""
    endpoint, body = draw(st.sampled_from(recorded_streams()))
    frames = body.split(b"\n\n")[:12] + body.split(b"\n\n")[-4:]
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(frames) - 1))
        other = draw(st.integers(0, len(frames) - 1))
        action = draw(st.sampled_from(["drop", "double", "swap"]))
        if action == "drop" and len(frames) > 1:
            frames.pop(position)
        elif action == "double":
            frames.insert(position, frames[other])
        else:
            frames[position], frames[other % len(frames)] = frames[other % len(frames)], frames[position]
        position = other = 0
    body = b"\n\n".join(frames)
    for old, new in draw(st.lists(st.sampled_from(_REPLACEMENTS), max_size=4)):
        body = body.replace(old, new, draw(st.sampled_from([1, 2, -1])))
    for _ in range(draw(st.integers(0, 2))):
        position = draw(st.integers(0, len(body)))
        body = body[:position] + draw(st.binary(max_size=2)) + body[position + draw(st.integers(0, 2)) :]
    return endpoint, body


_pieces = st.sampled_from(
    [
        *(old for old, _ in _REPLACEMENTS),
        *(new for _, new in _REPLACEMENTS),
        *[b"\n", b"\r", b"\r\n", b"data: ", b"{", b"}", b'{"choices":[{', b"}]}", b": x", b"[", b"]", b"\xef\xbb\xbf"],
        *[b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n', b"data: [DONE]\n\n"],
        *[b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n', b'data: {"error":"x"}\n\n'],
    ]
)
_runs = st.builds(
    lambda sign, count: sign * count,
    st.sampled_from([b": ping\n\n", b": ping\n", b"data: : x\n\n", b'data: {"choices":[{"index":0,"delta":{}}]}\n\n']),
    st.integers(1, 120),
)
"""Runs of the same keep-alive."""
any_bytes: st.SearchStrategy[bytes] = st.one_of(
    st.binary(max_size=60),
    st.lists(st.one_of(_pieces, _runs, st.binary(max_size=3)), max_size=20).map(b"".join),
)
