"""The first four laws of /v1/messages, for translation from chat and for pass-through repair."""

import json
from pathlib import Path
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from tests.laws import real_messages
from tests.laws.real_responses import frames
from tests.laws.strategies import ENVELOPES, arguments, legal_events, names, texts
from tests.table import table
from welldone.core.catalog import RULES, Repairability
from welldone.core.collect import collect
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event, Failure, Refusal, Text, ToolArguments
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.dialects.chat.writer import ChunkFormat
from welldone.dialects.messages.repair import MessagesRepairer
from welldone.dialects.messages.writer import MessagesFormat
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

Json = dict[str, Any]
MSG = Envelope("msg_1", 1700000000, "m")
REAL = [frames(events) for events in real_messages.STREAMS.values()]
RECORDED = sorted((Path(__file__).parent.parent / "recorded_dialects").glob("*/*messages_stream.body"))
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


def write(events: list[Event]) -> bytes:
    """Write a Messages stream of `events`."""
    writer = MessagesFormat().make_writer(MSG, lambda: None)
    return b"".join([*(writer.send(event) for event in events), writer.end()])


def write_chat(events: list[Event]) -> bytes:
    """Write a chat stream of `events`."""
    writer = ChunkFormat(RequestFacts()).make_writer(ENVELOPES[Endpoint.CHAT])
    return b"".join([*(writer.send(event) for event in events), writer.end()])


def fix(data: bytes, cuts: list[int] | None = None, strict: frozenset[str] = frozenset()) -> bytes:
    """Repair `data`, split at `cuts`."""
    repairer = MessagesRepairer(fallback=MSG)
    repairer.configure(0, RepairOptions(strict=strict))
    ends = [*sorted(cut for cut in cuts or [] if cut < len(data)), len(data)]
    pieces = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return b"".join([*(repairer.feed(piece) for piece in pieces), repairer.close()])


def fix_reply(data: bytes) -> tuple[bytes, MessagesRepairer]:
    """Repair a non-streaming reply."""
    repairer = MessagesRepairer(fallback=MSG, is_stream=False)
    repairer.feed_reply(data)
    repairer.close()
    return (b"" if repairer.failure is not None else repairer.body()), repairer


def violated_rules(data: bytes) -> set[str]:
    """Rules that a reply violates, except those without a repair."""
    judged = judge(Trace(body=data, endpoint="messages"))
    return {rule for rule in judged.counts if RULES[rule].repairability is not Repairability.REPORT_ONLY}


def values(data: bytes) -> list[Json]:
    """JSON of each frame, read with a minimal parser."""
    found = []
    for block in data.decode().split("\n\n"):
        lines = [line.removeprefix("data: ") for line in block.split("\n") if line.startswith("data: ")]
        found += [json.loads(line) for line in lines if line != "[DONE]"]
    return found


def chat_content(data: bytes) -> Json:
    """Content of a chat stream."""
    result: Json = {"text": "", "thought": "", "calls": {}, "reason": None, "usage": None, "error": None}
    for chunk in values(data):
        result["error"] = chunk.get("error", {}).get("message", result["error"])
        result["usage"] = chunk.get("usage") or result["usage"]
        for choice in chunk.get("choices", []):
            result["reason"] = choice["finish_reason"] or result["reason"]
            delta = choice["delta"]
            result["text"] += (delta.get("content") or "") + (delta.get("refusal") or "")
            result["thought"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                known = result["calls"].setdefault(call["index"], {"id": call.get("id"), "name": "", "arguments": ""})
                known["name"] += call["function"].get("name", "")
                known["arguments"] += call["function"].get("arguments", "")
    return result


def messages_content(data: bytes) -> Json:
    """Content of a Messages stream by block."""
    result: Json = {"blocks": [], "usage": {}, "error": None, "reason": None, "stop": None, "message": None, "more": {}}
    for value in values(data):
        match value["type"]:
            case "message_start":
                result["message"] = {k: v for k, v in value["message"].items() if k != "usage"}
                result["usage"] = value["message"]["usage"]
            case "content_block_start":
                assert value["index"] == len(result["blocks"])
                result["blocks"].append({**value["content_block"], "json": "", "deltas": []})
            case "content_block_delta":
                add(result["blocks"][value["index"]], value["delta"])
            case "message_delta":
                result["reason"], result["stop"] = value["delta"]["stop_reason"], value["delta"]["stop_sequence"]
                result["usage"] = result["usage"] | value["usage"]
                result["more"] |= {k: v for k, v in value["delta"].items() if k not in ("stop_reason", "stop_sequence")}
            case "error":
                result["error"] = value["error"]["message"]
            case _:
                pass
    return result


def add(block: Json, delta: Json) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "input_json_delta":
            block["json"] += delta["partial_json"]
        case "signature_delta":
            block["signature"] += delta["signature"]
        case _:
            block["deltas"].append(delta)


@given(events=legal_events(Endpoint.CHAT, choices=1))
def test_law_1_written_streams_are_correct(events: list[Event]) -> None:
    assert judge(Trace(body=write(events), endpoint="messages")).findings == ()


@given(events=legal_events(Endpoint.CHAT, choices=1))
def test_law_1_written_replies_are_correct(events: list[Event]) -> None:
    body = MessagesFormat().encode_reply(MSG, collect(events))
    if not isinstance(events[-1], Failure):
        assert judge(Trace(body=body, endpoint="messages")).findings == ()


@given(events=legal_events(Endpoint.CHAT, choices=1), calls=st.lists(texts, max_size=2))
def test_the_same_events_have_the_same_content_in_chat_and_in_messages(events: list[Event], calls: list[str]) -> None:
    # Text between two pieces of a call is delayed in Messages, but not in chat.
    positions = [position for position, one in enumerate(events) if isinstance(one, ToolArguments)]
    for position, text in zip(reversed(positions), calls, strict=False):
        events.insert(position, Text(0, text))
    is_failed = isinstance(events[-1], Failure)
    chat, messages = chat_content(write_chat(events)), messages_content(write(events))
    blocks = messages["blocks"]
    called = [block for block in blocks if block["type"] == "tool_use"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    assert text == chat["text"] or (is_failed and chat["text"].startswith(text))
    assert "".join(block["thinking"] for block in blocks if block["type"] == "thinking") == chat["thought"]
    assert [(block["id"], block["name"], json.loads(block["json"])) for block in called if not is_failed] == [
        (call["id"], call["name"], json.loads(call["arguments"])) for call in chat["calls"].values() if not is_failed
    ]
    assert messages["error"] == chat["error"]
    if not is_failed:
        is_refused = any(isinstance(one, Refusal) for one in events)
        expected = "refusal" if is_refused and chat["reason"] == "stop" else REASONS[chat["reason"]]
        assert messages["reason"] == expected
        usage = chat["usage"] or {"prompt_tokens": 0, "completion_tokens": 0}
        reported = messages["usage"]
        assert reported["input_tokens"] + reported["cache_read_input_tokens"] == usage["prompt_tokens"]
        assert reported["output_tokens"] == usage["completion_tokens"]


@given(events=legal_events(Endpoint.CHAT, choices=1))
def test_a_stream_and_a_reply_have_the_same_content(events: list[Event]) -> None:
    if isinstance(events[-1], Failure):
        return
    streamed, reply = messages_content(write(events)), json.loads(MessagesFormat().encode_reply(MSG, collect(events)))
    assert (streamed["reason"], streamed["stop"]) == (reply["stop_reason"], reply["stop_sequence"])
    assert streamed["usage"] == reply["usage"]
    for block in streamed["blocks"]:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"])
        del block["json"], block["deltas"]
    assert streamed["blocks"] == reply["content"]


REPLACEMENTS = [
    (b'"type":"message_start",', b""),
    (b"event: message_start\n", b""),
    (b"event: content_block_start\n", b""),
    (b"event: content_block_delta\n", b"event: completion\n"),
    (b"event: message_stop", b"event: done"),
    (b'{"type":"message_stop"}', b"[DONE]"),
    (b'{"type":"message_stop"}', b'{"type":"message_stop"}\n\ndata: [DONE]'),
    (b'"type":"content_block_delta",', b""),
    (b'"type":"content_block_stop"', b'"type":"content_block_end"'),
    (b'"type":"text_delta"', b'"type":"thinking_delta"'),
    (b'"type":"text_delta"', b'"type":"input_json_delta"'),
    (b'"type":"text_delta",', b""),
    (b'"type":"input_json_delta"', b'"type":"text_delta"'),
    (b'"partial_json":"', b'"partial_json":{},"x":"'),
    (b'"type":"text","text":""', b'"type":"text"'),
    (b'"type":"text","text":""', b'"type":"text","text":"He"'),
    (b'"type":"text","text":""', b'"type":"thinking","thinking":"hm"'),
    (b'"type":"text","text":""', b'"type":"redacted_thinking"'),
    (b'"type":"text","text":""', b'"type":"tool_use","name":"get","input":{"a":1}'),
    (b'"type":"text","text":""', b'"type":"tool_use","id":"a","name":""'),
    (b'"type":"text","text":""', b'"text":"","citations":[{"type":"x"},3]'),
    (b'"type":"text","text":""', b'"x":1'),
    (b'"text":"', b'"text":"\\ud83d'),
    (b'"text":"', b'"text":"\xf0\x9f'),
    (b'"text":"', b'"text":"\\ude00'),
    (b'"text":"', b'"text":"\x98\x80'),
    (b'"partial_json":"', b'"partial_json":"\\ud83d'),
    (b'"type":"text_delta"', b'"x":"\\ud83d","type":"text_delta"'),
    (b'"type":"text_delta"', b'"type":"\\ud83d"'),
    (b'"text":"', b'"text":null,"x":"'),
    (b'"index":0', b'"index":1'),
    (b'"index":1', b'"index":0'),
    (b'"index":0', b'"index":"0"'),
    (b',"index":0', b""),
    (b'"stop_reason":null', b'"stop_reason":"end_turn"'),
    (b'"stop_reason":"max_tokens"', b'"stop_reason":"length"'),
    (b'"stop_reason":"max_tokens"', b'"stop_reason":"stop_sequence"'),
    (b'"stop_reason":"max_tokens"', b'"stop_reason":"tool_use"'),
    (b'"stop_reason":"max_tokens"', b'"stop_reason":null'),
    (b'"stop_reason":"max_tokens"', b'"stop_reason":"abort"'),
    (b'"stop_reason":"tool_use"', b'"stop_reason":"end_turn"'),
    (b'"stop_reason":"tool_use"', b'"stop_reason":"whatever"'),
    (b'"usage":{', b'"usage":null,"x":{'),
    (b'"output_tokens":', b'"output_tokens":"x","y":'),
    (b'"input_tokens":', b'"input_tokens":-1,"y":'),
    (b'"delta":{', b'"delta":null,"x":{'),
    (b'"delta":{', b'"message":"x","error":null,"delta":{'),
    (b'"delta":{', b'"error":{"message":"x"},"delta":{'),
    (b'"message":{', b'"message":null,"x":{'),
    (b'"content":[]', b'"content":null'),
    (b'"content":[]', b'"content":[{"type":"tool_use","id":"t","name":"n","input":{"b":2}}]'),
    (b'"id":"', b'"id":null,"x":"'),
    (b'"model":"', b'"model":7,"x":"'),
    (b"\n\n", b"\n"),
    (b"\n\n", b"\r\n\r\n"),
    (b"\n\n", b"\n\n: ping\n\n"),
    (b"\n\n", b'\n\nevent: ping\ndata: {"type":"ping"}\n\n'),
    (b"\n\n", b"\n\nevent: ping\ndata: ping\n\n"),
    (b"\n\n", b'\n\nevent: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"no"}}\n\n'),
    (b"\n\n", b'\n\ndata: {"error":{"message":"no","type":"server_error","code":503}}\n\n'),
    (b"\n\n", b"\n\nevent: error\ndata: oh no\n\n"),
    (b"\n\n", b'\n\nevent: x\ndata: {"type":"x"}\n\n'),
    (b"data: ", b"data:"),
    (b"data: {", b"{"),
    (b"null", b"NaN"),
    (b'{"', b"{'"),
    (b"}", b"}}"),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Recorded stream with frames dropped, duplicated or swapped, tokens replaced, and bytes changed."""
    body = draw(st.one_of(st.sampled_from(REAL), st.sampled_from(RECORDED).map(Path.read_bytes)))
    frames = body.split(b"\n\n")
    middle = max(3, len(frames) - 22)
    frames = frames[:6] + frames[middle:]
    for _ in range(draw(st.integers(0, 4))):
        position, other = (draw(st.integers(0, len(frames) - 1)) for _ in range(2))
        action = draw(st.sampled_from(["drop", "double", "swap"]))
        if action == "drop" and len(frames) > 1:
            frames.pop(position)
        elif action == "double":
            frames.insert(position, frames[other])
        else:
            frames[position], frames[other] = frames[other], frames[position]
    body = b"\n\n".join(frames)
    for old, new in draw(st.lists(st.sampled_from(REPLACEMENTS), max_size=4)):
        body = body.replace(old, new, draw(st.sampled_from([1, 2, -1])))
    for _ in range(draw(st.integers(0, 2))):
        position = draw(st.integers(0, len(body)))
        body = body[:position] + draw(st.binary(max_size=2)) + body[position + draw(st.integers(0, 2)) :]
    return body


FRAMES = [
    b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n',
    b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n',
    b'data: {"type":"content_block_start","index":1,"content_block":{"type":"thinking","thinking":"a"}}\n\n',
    b'data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"n"}}\n\n',
    b'data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"t","name":"n"}}\n\n',
    b'data: {"type":"content_block_start","index":2,"content_block":{"type":"new_thing","x":[]}}\n\n',
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}\n\n',
    b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":""}}\n\n',
    b'data: {"type":"content_block_delta","index":1,"delta":{"type":"thinking_delta","thinking":"a"}}\n\n',
    b'data: {"type":"content_block_delta","index":1,"delta":{"type":"signature_delta","signature":"a"}}\n\n',
    b'data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{"}}\n\n',
    b'data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"}"}}\n\n',
    b'data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{}"}}\n\n',
    b'data: {"type":"content_block_delta","index":2,"delta":{"type":"new_delta","x":1}}\n\n',
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"citations_delta","citation":{"a":1}}}\n\n',
    b'data: {"type":"content_block_stop","index":0}\n\n',
    b'data: {"type":"content_block_stop","index":1}\n\n',
    b'data: {"type":"content_block_stop","index":2}\n\n',
    b'data: {"type":"content_block_stop"}\n\n',
    b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}\n\n',
    b'data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":"x"}}\n\n',
    b'data: {"type":"message_stop"}\n\n',
    b'data: {"type":"error"}\n\n',
    b"data: [DONE]\n\n",
]
pieces = st.sampled_from([*(old for old, _ in REPLACEMENTS), *(new for _, new in REPLACEMENTS), *FRAMES])
any_bytes = st.one_of(
    st.binary(max_size=60),
    st.lists(st.one_of(pieces, st.binary(max_size=3)), max_size=20).map(b"".join),
    st.lists(st.sampled_from(FRAMES), max_size=20).map(b"".join),
    damaged(),
)


@given(data=any_bytes)
def test_law_2_any_bytes_give_a_correct_stream(data: bytes) -> None:
    fixed = fix(data)
    event("failed" if b"event: error" in fixed else "complete")
    assert violated_rules(fixed) == set()


@given(data=any_bytes)
def test_law_3_repair_is_idempotent(data: bytes) -> None:
    once = fix(data)
    assert fix(once) == once


@given(data=any_bytes, cuts=st.lists(st.integers(1, 3000)))
def test_law_4_byte_boundaries_do_not_matter(data: bytes, cuts: list[int]) -> None:
    assert fix(data, cuts) == fix(data)


@given(data=any_bytes, rules=st.one_of(st.just({"all"}), st.sets(st.sampled_from(sorted(RULES)))))
def test_laws_2_and_4_hold_with_strict_rules(data: bytes, rules: set[str]) -> None:
    fixed = fix(data, strict=frozenset(rules))
    assert violated_rules(fixed) == set()
    assert fix(data, list(range(7, len(data), 7)), strict=frozenset(rules)) == fixed


@given(events=legal_events(Endpoint.CHAT, choices=1))
def test_law_3_a_written_stream_passes_unchanged(events: list[Event]) -> None:
    written = write(events)
    assert fix(written) == written


BLOCKS = st.one_of(
    texts.map(lambda text: ({"type": "text", "text": ""}, [{"type": "text_delta", "text": text}])),
    texts.map(
        lambda text: (
            {"type": "text", "text": "", "citations": []},
            [
                {"type": "text_delta", "text": text},
                {"type": "citations_delta", "citation": {"type": "char_location", "cited_text": text}},
            ],
        )
    ),
    texts.map(
        lambda text: (
            {"type": "thinking", "thinking": "", "signature": ""},
            [{"type": "thinking_delta", "thinking": text}, {"type": "signature_delta", "signature": "c2ln"}],
        )
    ),
    texts.map(lambda text: ({"type": "redacted_thinking", "data": text}, [])),
    st.tuples(names, arguments).map(
        lambda call: (
            {"type": "server_tool_use", "id": f"srvtoolu_{call[0]}", "name": "web_search", "input": {}},
            [{"type": "input_json_delta", "partial_json": part} for part in ("", call[1][:3], call[1][3:])],
        )
    ),
    texts.map(
        lambda text: ({"type": "web_search_tool_result", "tool_use_id": "x", "content": [{"title": text, "x": 1}]}, [])
    ),
    st.just(({"type": "compaction", "content": None}, [{"type": "compaction_delta", "content": "all"}])),
)


@st.composite
def correct_stream(draw: st.DrawFn) -> bytes:
    """Correct stream with content that only Messages has."""
    usage = {"input_tokens": 5, "output_tokens": 1, "cache_creation_input_tokens": 7, "service_tier": "standard"}
    message: Json = {"id": "msg_x", "type": "message", "role": "assistant", "model": "claude", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": usage, "container": None}
    values: list[Json] = [{"type": "message_start", "message": message}]
    for index, (start, deltas) in enumerate(draw(st.lists(BLOCKS, max_size=5))):
        if "id" in start:
            start = {**start, "id": f"{start['id']}_{index}"}
        values.append({"type": "content_block_start", "index": index, "content_block": start, "x": 1})
        values += [{"type": "content_block_delta", "index": index, "delta": {**delta}} for delta in deltas]
        values.append({"type": "content_block_stop", "index": index})
        values += [{"type": "ping"}] * draw(st.integers(0, 1))
    delta = {"stop_reason": draw(st.sampled_from(["end_turn", "pause_turn", "refusal"])), "stop_sequence": None}
    values.append(
        {
            "type": "message_delta",
            "delta": {**delta, "container": {"id": "c"}},
            "usage": {"output_tokens": 9, "server_tool_use": {"web_search_requests": 2}},
            "context_management": {"applied_edits": []},
        }
    )
    values.append({"type": "message_stop"})
    return b"".join(
        b"event: " + value["type"].encode() + b"\ndata: " + json.dumps(value).encode() + b"\n\n" for value in values
    )


@given(data=correct_stream())
def test_law_3_a_correct_stream_keeps_its_content(data: bytes) -> None:
    repairer = MessagesRepairer(fallback=MSG)
    fixed = repairer.feed(data) + repairer.close()
    assert values(fixed) == values(data)
    assert repairer.repair_log.entries() == []


@given(data=correct_stream())
def test_law_3_a_correct_reply_has_the_content_of_its_stream(data: bytes) -> None:
    buffered = MessagesRepairer(fallback=MSG, is_stream=False)
    assert buffered.feed(data) + buffered.close() == b""
    body, repairer = fix_reply(buffered.body())
    assert json.loads(body) == json.loads(buffered.body())
    assert repairer.repair_log.entries() == []
    streamed = MessagesRepairer(fallback=MSG)
    again = MessagesRepairer(fallback=MSG, is_stream=False)
    again.feed(streamed.feed_reply(body) + streamed.close())
    again.close()
    assert json.loads(again.body())["content"] == json.loads(body)["content"]


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
any_blocks = st.dictionaries(
    st.sampled_from(["type", "text", "thinking", "signature", "id", "name", "input", "data", "citations"]),
    st.one_of(
        json_values, st.sampled_from(["text", "thinking", "tool_use", "redacted_thinking", "{}", '{"a":1}', "{"])
    ),
)
any_messages = st.dictionaries(
    st.sampled_from(["id", "type", "role", "model", "stop_reason", "stop_sequence", "usage", "error", "message"]),
    st.one_of(json_values, st.just({"input_tokens": 3, "output_tokens": -1}), st.just("tool_use")),
)


@given(message=any_messages, content=st.one_of(json_values, st.lists(st.one_of(any_blocks, json_values), max_size=4)))
def test_law_2_any_reply_is_repaired_to_a_correct_one(message: Json, content: object) -> None:
    data = json.dumps({**message, "content": content}).encode()
    body, repairer = fix_reply(data)
    streamed = MessagesRepairer(fallback=MSG)
    stream = streamed.feed_reply(data) + streamed.close()
    assert violated_rules(stream) == set()
    if repairer.failure is None:
        assert violated_rules(body) == set()
        assert fix_reply(body)[0] == body
        assert fix_reply(body)[1].repair_log.entries() == []


@table("path", RECORDED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recorded_streams_are_correct_after_repair(path: Path) -> None:
    body = path.read_bytes()
    fixed = fix(body)
    assert violated_rules(fixed) == set()
    assert [block | {"json": ""} for block in messages_content(fixed)["blocks"] if block["type"] == "text"] == [
        block for block in messages_content(body)["blocks"] if block["type"] == "text"
    ]
    if violated_rules(body) == set():
        assert values(fixed) == values(body)
