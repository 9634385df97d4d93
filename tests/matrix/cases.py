"""Every chat stream that real clients were measured with, and its expected content after repair.

The name of a case is the difference from a correct stream.
"""

import json

from tests.matrix.build import (
    ABSENT,
    BASE,
    CALLED,
    COUNTED,
    DONE,
    HEAD,
    HELLO,
    NOTHING,
    ONE,
    OPENING,
    ROLE,
    SECOND,
    STOP,
    USAGE,
    WHOLE,
    WORLD,
    ZERO,
    Json,
    X,
    amid,
    begin,
    but,
    but_choice,
    but_delta,
    calls,
    changed,
    chunk,
    delta,
    every,
    every_choice,
    failed,
    frame,
    later,
    more,
    stream,
    text,
    unfinished,
)
from tests.oracle.reply import Choice, Reply, choice, reply

ROLES = {
    "role.content_null": text(role=but_delta(ROLE, content=None)),
    "role.content_absent": text(role=but_delta(ROLE, content=ABSENT)),
    "role.none_at_all": text(role=None),
    "role.with_first_token": text(role=but_delta(ROLE, content="Hello"), hello=None),
    "role.repeated": later(role="assistant"),
    "role.null_later": later(role=None),
    "role.empty_string_later": later(role=""),
    "role.bad_value": text(role=but_delta(ROLE, role="model")),
}

FINISHES = {
    "fin.key_absent": unfinished(finish_reason=ABSENT),
    "fin.empty_string": unfinished(finish_reason=""),
    "fin.string_null": unfinished(finish_reason="null"),
    "fin.value_eos": text(stop=but_choice(STOP, finish_reason="eos")),
    "fin.never": text(stop=None),
    "fin.on_content_chunk": text(world=but_choice(WORLD, finish_reason="stop"), stop=None),
    "fin.delta_absent": text(stop=but_choice(STOP, delta=ABSENT)),
    "fin.delta_null": text(stop=but_choice(STOP, delta=None)),
    "fin.delta_content_null": text(stop=but_delta(STOP, content=None)),
    "fin.content_after": text(world=STOP, stop=WORLD),
    "fin.then_empty_string": stream(*BASE[:4], but_choice(NOTHING, finish_reason=""), COUNTED, DONE),
    "fin.then_null_chunk": stream(*BASE[:4], NOTHING, COUNTED, DONE),
}

ENDS = {
    "done.missing": text(end=None),
    "done.missing_final_blank": text(end=b"data: [DONE]\n"),
    "done.last_chunk_unterminated": text(end=None).removesuffix(b"\n\n"),
    "done.no_space": text(end=b"data:[DONE]\n\n"),
    "done.trailing_space": text(end=b"data: [DONE] \n\n"),
    "done.json_string": text(end=b'data: "[DONE]"\n\n'),
    "done.event_named": text(end=b"event: done\ndata: [DONE]\n\n"),
    "done.twice": text(end=DONE + DONE),
    "done.data_after": stream(*BASE[:4], DONE, COUNTED),
    "done.bare": text(end=b"[DONE]\n\n"),
    "eof.mid_json": stream(ROLE, HELLO, WORLD, frame(STOP)[:120]),
}


def _spread(prefix: str) -> bytes:
    """Spread the JSON of the base stream over several lines, with a prefix from the second on."""
    frames = [json.dumps(one, indent=1).replace("\n", f"\n{prefix}") for one in BASE]
    return stream(*(f"data: {spread}\n\n".encode() for spread in frames), DONE)


def _bytes_repr() -> bytes:
    """The base stream of a server that sends the repr of its bytes."""
    return stream(*(f"data: {json.dumps(one).encode()!r}\n\n".encode() for one in BASE), DONE)


FRAMES = {
    "sse.crlf": text().replace(b"\n", b"\r\n"),
    "sse.cr": text().replace(b"\n", b"\r"),
    "sse.no_space": text().replace(b"data: ", b"data:"),
    "sse.single_newline": text().replace(b"\n\n", b"\n"),
    "sse.multiline_json": _spread("data: "),
    "sse.pretty_json_one_prefix": _spread(""),
    "sse.bom": b"\xef\xbb\xbf" + text(),
    "sse.comment_ping": amid(b": ping\n\n"),
    "sse.comment_with_id": b"id: 1\n" + amid(b": ping\n\n"),
    "sse.comment_single_nl_with_id": b"id: 1\n" + amid(b": ping\n"),
    "sse.extra_blank_with_id": b"id: 1\n" + amid(b"\n"),
    "sse.event_data_name": text().replace(b"data: {", b"event: data\ndata: {"),
    "sse.event_ping_nodata": amid(b"event: ping\n\n"),
    "sse.event_ping_emptydata": amid(b"event: ping\ndata: \n\n"),
    "sse.event_ping_json": amid(b'event: ping\ndata: {"type":"ping"}\n\n'),
    "sse.retry_only": amid(b"retry: 3000\n\n"),
    "sse.empty_data": amid(b"data: \n\n"),
    "sse.data_comment": amid(b"data: : ping\n\n"),
    "sse.event_keepalive_emptychunk": amid(b"event: keepalive\n", but(NOTHING, choices=[])),
    "sse.keepalive_empty_delta": amid(NOTHING),
    "sse.keepalive_content_empty": amid(but_delta(NOTHING, content="")),
    "sse.data_undelimited_two": text(hello=frame(HELLO).removesuffix(b"\n")),
    "sse.python_bytes_repr": _bytes_repr(),
}

FACE = but_delta(HELLO, content="😀")
ENCODINGS = {
    # Chunk boundaries matter here; every case is also fed byte by byte.
    "utf8.split_tcp": text(hello=FACE),
    "utf8.escaped_surrogates": text(hello=frame(FACE, ascii_only=True)),
    "utf8.lone_surrogates_split": text(
        hello=frame(but_delta(HELLO, content="\ud83d"), ascii_only=True),
        world=frame(but_delta(WORLD, content="\ude00 world"), ascii_only=True),
    ),
    "utf8.invalid_bytes": text().replace(b"Hello", b"\xf0\x9f"),
    "utf8.u2028": text(hello=but_delta(HELLO, content="Hello\u2028")),
    "json.nan": text(hello=but_choice(HELLO, t=float("nan"))),
    "json.raw_newline_in_string": text().replace(b"Hello", b"Hello\n"),
}

ENVELOPES = {
    "id.missing": every(id=ABSENT),
    "id.null": every(id=None),
    "id.empty": every(id=""),
    "id.int": every(id=7),
    "id.changes": stream(*(but(one, id=f"chatcmpl-base{at}") for at, one in enumerate(BASE)), DONE),
    "id.missing_on_usage": text(counted={"choices": [], "usage": USAGE}),
    "created.float": every(created=1600000000.5),
    "created.ms": every(created=1600000000000),
    "created.string": every(created="1600000000"),
    "created.null": every(created=None),
    "created.missing": every(created=ABSENT),
    "created.changes": stream(*(but(one, created=1600000000 + at) for at, one in enumerate(BASE)), DONE),
    "model.missing": every(model=ABSENT),
    "object.missing": every(object=ABSENT),
    "object.wrong": every(object="chat.completion"),
    "object.empty": every(object=""),
    "choices.null_mid": amid(but(NOTHING, choices=None)),
    "choices.missing_usage": text(counted=but(COUNTED, choices=ABSENT)),
    "choices.null_usage": text(counted=but(COUNTED, choices=None)),
    "index.missing": every_choice(index=ABSENT),
    "index.string": every_choice(index="0"),
}


def _message(old: Json) -> Json:
    return but_choice(old, message=old["choices"][0]["delta"], delta=ABSENT)


def _parts(old: Json) -> Json:
    return but_delta(old, content=[{"type": "text", "text": old["choices"][0]["delta"]["content"]}])


CONTENTS = {
    "message.instead_of_delta": stream(*map(_message, BASE[:4]), COUNTED, DONE),
    "content.array": text(hello=_parts(HELLO), world=_parts(WORLD)),
    "content.cumulative": stream(
        ROLE,
        HELLO,
        *(but_delta(WORLD, content="Hello world"[:length]) for length in (7, 9, 11)),
        *(STOP, COUNTED, DONE),
    ),
    "content.number": text(hello=but_delta(HELLO, content=1)),
}


def _counted(**members: object) -> bytes:
    return text(counted=but(COUNTED, usage=changed(USAGE, members)))


USAGES = {
    "usage.every_chunk": every(usage=USAGE),
    "usage.null_others": stream(*(but(one, usage=None) for one in BASE[:4]), COUNTED, DONE),
    "usage.on_finish": text(stop=but(STOP, usage=USAGE), counted=None),
    "usage.with_dummy_choice": text(counted=but(NOTHING, usage=USAGE)),
    "usage.then_chunk": text(stop=COUNTED, counted=STOP),
    "usage.first_chunk_then_null": stream(but(ROLE, usage=USAGE), *(but(one, usage=None) for one in BASE[1:4]), DONE),
    "usage.zero_every": every(usage=ZERO),
    "usage.empty_obj": text(counted=but(COUNTED, usage={})),
    "usage.strings": _counted(prompt_tokens="5", completion_tokens="3", total_tokens="8"),
    "usage.floats": _counted(prompt_tokens=5.5, completion_tokens=3.0, total_tokens=8.5),
    "usage.details_null": _counted(prompt_tokens_details=None, completion_tokens_details=None),
    "usage.missing": text(counted=None),
}

ERROR = {"message": "boom", "type": "server_error", "param": None, "code": None}
FLAT = {**ERROR, "code": 500}
ERRORS = {
    "err.mid_object": failed(frame({"error": ERROR}), DONE),
    "err.mid_no_done": failed(frame({"error": ERROR})),
    "err.mid_code_int": failed(frame({"error": {**ERROR, "code": 500}}), DONE),
    "err.string": failed(frame({"error": "boom"}), DONE),
    "err.object_style": failed(frame({"object": "error", **FLAT}), DONE),
    "err.event_named": failed(b"event: error\n", frame({"error": ERROR}), DONE),
    "err.event_named_flat": failed(b"event: error\n", frame(FLAT), DONE),
    "err.field_error": failed(frame(FLAT).replace(b"data: ", b"error: "), DONE),
    "err.in_chunk_with_choices": failed(but(NOTHING, choices=[], error=ERROR), DONE),
    "err.truncated_eof": failed(),
    "err.done_only_after_content": failed(DONE),
    "err.null_key": every(error=None),
    "err.first_event": stream({"error": ERROR}, DONE),
    "empty.done_only": DONE,
    "empty.no_bytes": b"",
    "empty.generation": text(hello=None, world=None),
}

TIMINGS = {"predicted_ms": 12.5}
PLACEHOLDER = {**HEAD, "id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": []}
EXTRAS = {
    "extra.unknown_fields": stream(*(but(one, timings=TIMINGS) for one in BASE), DONE),
    "extra.unknown_delta_fields": later(vendor="x"),
    "azure.first_empty": frame(PLACEHOLDER) + text(),
    "reasoning.both": stream(ROLE, chunk({"reasoning_content": "Hm.", "reasoning": "Hm."}), *BASE[1:], DONE),
    "reasoning.only_content": stream(ROLE, chunk({"reasoning_content": "Hm."}), *BASE[1:], DONE),
    "refusal": text(hello=chunk({"refusal": "I cannot"}), world=chunk({"refusal": " do that."})),
}

BYE = [but_choice(one, index=1) for one in (ROLE, but_delta(HELLO, content="Bye"), STOP)]
SEVERAL = {
    "n2.interleaved": stream(ROLE, BYE[0], HELLO, BYE[1], WORLD, STOP, BYE[2], COUNTED, DONE),
    "n2.index1_first": stream(BYE[0], BYE[1], ROLE, HELLO, WORLD, STOP, BYE[2], COUNTED, DONE),
}

Y = more('{"y":2}', index=1)
CALLS = {
    "tool.base": calls(begin(), X, ONE),
    "tool.parallel": calls(begin(), X, ONE, SECOND, Y),
    "tool.parallel_interleaved": calls(begin(), SECOND, X, Y, ONE),
    "tool.two_in_one_delta": calls(delta(WHOLE, begin(SECOND, arguments='{"y":2}'))),
    "tool.index_missing": calls(changed(WHOLE, {"index": ABSENT})),
    "tool.index_missing_fragments": calls(*(changed(one, {"index": ABSENT}) for one in (begin(), X, ONE))),
    "tool.index_all_zero": calls(begin(), X, ONE, begin(SECOND, index=0), changed(Y, {"index": 0})),
    "tool.index_from_one": calls(*(changed(one, {"index": 1}) for one in (begin(), X, ONE))),
    "tool.index_string": calls(*(changed(one, {"index": "0"}) for one in (begin(), X, ONE))),
    "tool.id_repeated": calls(begin(), more('{"x"', id="call_a"), more(":1}", id="call_a")),
    "tool.id_name_type_repeated": calls(begin(), begin(arguments='{"x"'), begin(arguments=":1}")),
    "tool.id_changes": calls(begin(), more('{"x"', id="call_z"), more(":1}", id="call_y")),
    "tool.id_missing": calls(begin(id=ABSENT), X, ONE),
    "tool.id_empty_later": calls(begin(), more('{"x"', id=""), more(":1}", id="")),
    "tool.name_null_later": calls(*(begin(), more('{"x"', name=None, type=None), more(":1}", name=None, type=None))),
    "tool.name_empty_later": calls(begin(), more('{"x"', name=""), more(":1}", name="")),
    "tool.name_split": calls(begin(name="g"), more("", name="et"), X, ONE),
    "tool.name_in_second": calls(begin(name=ABSENT), more("", name="get"), X, ONE),
    "tool.type_missing": calls(begin(type=ABSENT), X, ONE),
    "tool.type_null": calls(begin(type=None), X, ONE),
    "tool.args_object": calls(begin(arguments={"x": 1})),
    "tool.args_null_first": calls(begin(arguments=None), X, ONE),
    "tool.args_missing_first": calls(begin(arguments=ABSENT), X, ONE),
    "tool.args_never": calls(begin()),
    "tool.args_braces_then_real": calls(begin(arguments="{}"), X, ONE),
    "tool.function_missing": calls(begin(), X, ONE, {"index": 0}),
    "tool.function_null": calls(begin(), X, ONE, {"index": 0, "function": None}),
    "tool.whole_call_with_finish": calls(but_choice(delta(WHOLE), finish_reason="tool_calls"), finish=None),
    "tool.finish_stop": calls(begin(), X, ONE, finish=STOP),
    "tool.finish_both": calls(begin(), X, ONE, CALLED, finish=STOP),
    "tool.finish_missing": calls(begin(), X, ONE, finish=None),
    "tool.finish_empty_string": calls(
        *(but_choice(delta(one), finish_reason="") for one in (begin(), X, ONE)),
        role=but_choice(OPENING, finish_reason=""),
    ),
    "tool.content_and_call_same_delta": calls(delta(begin(), content="Hello"), X, ONE),
    "tool.content_between": calls(begin(), HELLO, X, ONE),
    "tool.tool_calls_null_everywhere": calls(
        *(begin(), X, ONE), role=but_delta(OPENING, tool_calls=None), finish=but_delta(CALLED, tool_calls=None)
    ),
    "tool.tool_calls_empty_list": calls(
        *(begin(), X, ONE), role=but_delta(OPENING, tool_calls=[]), finish=but_delta(CALLED, tool_calls=[])
    ),
    "tool.legacy_function_call": calls(
        chunk({"function_call": {"name": "get", "arguments": ""}}),
        chunk({"function_call": {"arguments": '{"x"'}}),
        chunk({"function_call": {"arguments": ":1}"}}),
        finish=chunk({}, "function_call"),
    ),
}

CASES: dict[str, bytes] = {
    "base": text(),
    **ROLES,
    **FINISHES,
    **ENDS,
    **FRAMES,
    **ENCODINGS,
    **ENVELOPES,
    **CONTENTS,
    **USAGES,
    **ERRORS,
    **EXTRAS,
    **SEVERAL,
    **CALLS,
}

COUNTS = [5, 3, 8]
OURS = "an error added by repair"
SAID = reply(choice(role="assistant", text="Hello world", finish="stop"), usage=COUNTS)
BOOM = reply(choice(role="assistant", text="Hello"), error="boom")


def _text_reply(text: str, usage: list[int] | None = COUNTS) -> Reply:
    return reply(choice(role="assistant", text=text, finish="stop"), usage=usage)


def _called(*tools: list[str], text: str = "") -> Reply:
    return reply(_calling(list(tools), text), usage=COUNTS)


def _calling(tools: list[list[str]], text: str) -> Choice:
    return choice(role="assistant", text=text, tools=tools, finish="tool_calls")


GET, PUT = ["call_a", "get", '{"x":1}'], ["call_b", "put", '{"y":2}']
MINTED = ["call_11", "get", '{"x":1}']
"""A generated id: the id of the stream and a number."""

EXPECTED: dict[str, Reply] = {
    **dict.fromkeys(CASES, SAID),
    **dict.fromkeys(CALLS, _called(GET)),
    # An incomplete character is replaced by U+FFFD.
    "utf8.invalid_bytes": _text_reply("\ufffd world"),
    **dict.fromkeys(
        ("utf8.split_tcp", "utf8.escaped_surrogates", "utf8.lone_surrogates_split"), _text_reply("😀 world")
    ),
    "utf8.u2028": _text_reply("Hello\u2028 world"),
    "json.raw_newline_in_string": _text_reply("Hello\n world"),
    "content.number": _text_reply("1 world"),
    # Missing counts are not invented, fractions are not rounded. A last count of zeros is a count.
    **dict.fromkeys(("usage.missing", "usage.empty_obj", "usage.floats"), _text_reply("Hello world", usage=None)),
    "usage.zero_every": _text_reply("Hello world", usage=[0, 0, 0]),
    **dict.fromkeys((name for name in ERRORS if name.startswith("err.")), BOOM),
    "err.null_key": SAID,
    "err.first_event": reply(error="boom"),
    "eof.mid_json": reply(choice(role="assistant", text="Hello world"), error=OURS),
    "err.truncated_eof": reply(choice(role="assistant", text="Hello"), error=OURS),
    # The server sent [DONE] without a finish_reason (see fin-always-sent).
    "err.done_only_after_content": _text_reply("Hello", usage=None),
    **dict.fromkeys(("empty.done_only", "empty.no_bytes"), reply(error=OURS)),
    "empty.generation": _text_reply(""),
    **dict.fromkeys(
        ("reasoning.both", "reasoning.only_content"),
        reply(choice(role="assistant", reasoning="Hm.", text="Hello world", finish="stop"), usage=COUNTS),
    ),
    "refusal": reply(choice(role="assistant", refusal="I cannot do that.", finish="stop"), usage=COUNTS),
    **dict.fromkeys(
        SEVERAL,
        reply(SAID["choices"][0], choice(role="assistant", text="Bye", finish="stop"), usage=COUNTS),
    ),
    **dict.fromkeys(
        ("tool.parallel", "tool.parallel_interleaved", "tool.two_in_one_delta", "tool.index_all_zero"),
        _called(GET, PUT),
    ),
    **dict.fromkeys(("tool.id_missing", "tool.legacy_function_call"), _called(MINTED)),
    "tool.args_never": _called(["call_a", "get", "{}"]),
    **dict.fromkeys(("tool.content_and_call_same_delta", "tool.content_between"), _called(GET, text="Hello")),
}


GIVEN: Json = {"id": "chatcmpl-1", "created": 1700000000, "model": "m"}
"""Fallback envelope; differs from that of the base stream."""

HEADS: dict[str, Json] = {
    **dict.fromkeys(CASES, HEAD),
    **dict.fromkeys(("id.missing", "id.null", "id.empty"), but(HEAD, id=GIVEN["id"])),
    "id.int": but(HEAD, id="7"),
    "id.changes": but(HEAD, id="chatcmpl-base0"),
    **dict.fromkeys(("created.null", "created.missing"), but(HEAD, created=GIVEN["created"])),
    "model.missing": but(HEAD, model=GIVEN["model"]),
}
"""Expected envelope of the repaired chunks."""


def request(name: str) -> Json:
    """Return the request of a case."""
    body: Json = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    if name in SEVERAL:
        body["n"] = 2
    if name in CALLS:
        body["tools"] = [{"type": "function", "function": {"name": tool}} for tool in ("get", "put")]
    return body
