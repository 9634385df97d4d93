"""The law on the wire: whatever an upstream sends, however it is cut, what the client hears is right or is an error."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.strategies import HEAD, any_bytes, recorded_streams, spoiled
from tests.server.scripts import Heard
from tests.server.told import Bench, benched
from tests.table import table
from welldone.mock.script import HELLO_REPLY, MockChunk, MockReply, ReplyEnd, ReplyFraming, cut_at, with_raw_http
from welldone.protocol.catalog import RULES_BY_ID
from welldone.protocol.catalog.rule import Repairability
from welldone.protocol.collect import CollectedReply as Collected
from welldone.protocol.collect import collect
from welldone.protocol.envelope import Endpoint
from welldone.protocol.pipeline import StreamPipeline
from welldone.protocol.reader import EventReader
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.request_facts import RequestFacts, read_request_facts
from welldone.rules.judge import judge

Json = dict[str, Any]

EXAMPLES = settings(max_examples=2 * settings().max_examples)
"""Each is a request over two sockets: some milliseconds, and all tests of this file together stay below a minute."""
UNKNOWABLE = {"use-final-chunk", "cmpl-usage-chunk"}
"""Counts that the server never gave are not invented."""
FAILED = re.compile(rb'data: \{"error":[^\n]*\n\ndata: \[DONE\]\n\n$')
FRAME = re.compile(r" \(frame \d+\)")
FINISHED = re.compile(rb"finish_reason[^:]{0,3}:\s*[\"'][^\"']")
SAID: dict[Endpoint, Json] = {
    Endpoint.CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    Endpoint.COMPLETIONS: {"prompt": "Hi"},
}
TYPES = ("text/event-stream", "text/event-stream; charset=utf-8", "application/json", "text/plain", "text/html", "")
PAUSES_S = (0.0, 0.003)
"""Between pieces. With the second the client has heard the one when the upstream sends the next."""
STATUSES = (200, 200, 200, 200, 200, 200, 201, 204, 307, 400, 404, 429, 500, 503)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with benched(tmp_path_factory.mktemp("gateway")) as made:
        yield made


class Case(NamedTuple):
    """What is asked, and what the upstream says."""

    endpoint: Endpoint
    request: Json
    reply: MockReply

    @property
    def body(self) -> bytes:
        return self.reply.body


bodies = st.one_of(
    spoiled(),
    st.tuples(st.sampled_from([Endpoint.CHAT, Endpoint.COMPLETIONS]), any_bytes),
    st.sampled_from(recorded_streams()),
)
"""Spoiled streams, plain bytes, and right streams."""


@st.composite
def requests(draw: st.DrawFn, endpoint: Endpoint) -> Json:
    request: Json = {"model": draw(st.sampled_from(["native", "native", "each"])), **SAID[endpoint]}
    if draw(st.booleans()):
        request["stream"] = True
        if draw(st.booleans()):
            request["stream_options"] = {"include_usage": True}
    if draw(st.booleans()):
        request["n"] = 3
    if endpoint is Endpoint.CHAT and draw(st.booleans()):
        request["tools"] = [{"type": "function", "function": {"name": "f"}}]
    return request


@st.composite
def cases(draw: st.DrawFn, ends: tuple[ReplyEnd, ...], *, is_right_http: bool = False) -> Case:
    """A body, perhaps not all of it, in any pieces, under any head, with any end."""
    endpoint, body = draw(bodies)
    if draw(st.booleans()):
        body = body[: draw(st.integers(0, len(body)))]
    at_frames = [found.end() for found in re.finditer(rb"\n\n", body)][:12]
    cuts = draw(st.one_of(st.just(at_frames), st.lists(st.integers(1, 3000), max_size=8)))
    framings: list[ReplyFraming] = ["chunked", "length", "close"]
    reply = MockReply(
        pieces(body, cuts, draw(st.sampled_from(PAUSES_S))),
        200 if is_right_http else draw(st.sampled_from(STATUSES)),
        {"Content-Type": TYPES[0]} if is_right_http else draw(st.sampled_from(TYPES).map(_typed)),
        draw(st.sampled_from(ends)),
        draw(st.sampled_from(framings)),
    )
    return Case(endpoint, draw(requests(endpoint)), reply)


def _typed(content_type: str) -> dict[str, str]:
    return {"Content-Type": content_type} if content_type else {}


def pieces(body: bytes, cuts: list[int], pause_s: float) -> tuple[MockChunk, ...]:
    """The body, each piece of which is written by itself."""
    ends = [*sorted(cut for cut in cuts if cut < len(body)), len(body)]
    spans = zip([0, *ends], ends, strict=False)
    return tuple(MockChunk(base64=body[start:end], after_s=pause_s) for start, end in spans if end > start)


def check(case: Case, heard: Heard) -> bool:
    """What the client hears is right; whether it is a success."""
    trace = msgspec.structs.replace(heard.capture, request=case.request, endpoint=case.endpoint.value)
    broken = {
        rule for rule in judge(trace).counts if RULES_BY_ID[rule].repairability is not Repairability.REPORT_ONLY
    } - UNKNOWABLE
    assert broken == set(), heard.raw
    assert trace.complete, heard.raw
    if heard.status != 200:
        assert 400 <= heard.status <= 504
        assert heard.error["message"]
        return False
    has_failed = bool(FAILED.search(heard.body))
    assert not has_failed or "stream" in case.request
    return not has_failed


def is_bound_to_fail(case: Case) -> bool:
    """Whether the upstream has plainly failed, by the bytes alone. Who says `[DONE]` has said all."""
    reply = case.reply
    is_cut = (reply.end, reply.framing) in {("cut", "chunked"), ("reset", "chunked"), ("reset", "close")}
    is_unsaid = b"[DONE]" not in reply.body
    return reply.status != 200 or (is_unsaid and (is_cut or not FINISHED.search(reply.body)))


def expected(case: Case) -> Collected:
    """What the core makes of the same bytes."""
    fallback = HEAD[case.endpoint]
    pipe = StreamPipeline(case.endpoint, fallback=fallback, facts=read_request_facts(case.request))
    return read(pipe.feed(case.body) + pipe.close(), case.endpoint)


def read(data: bytes, endpoint: Endpoint) -> Collected:
    """What a right stream says."""
    reader = EventReader(endpoint, fallback=HEAD[endpoint], facts=RequestFacts(), repair_log=RepairLog())
    return collect(reader.feed(data) + reader.close())


@EXAMPLES
@given(case=cases(("whole", "close", "cut", "reset")))
def test_what_the_client_hears_is_right_and_no_failure_is_a_success(bench: Bench, case: Case) -> None:
    is_success = check(case, bench.ask(case.reply, case.request, case.endpoint))
    assert not (is_success and is_bound_to_fail(case))


@EXAMPLES
@given(case=cases(("whole", "close"), is_right_http=True))
def test_the_wire_says_what_the_core_says(bench: Bench, case: Case) -> None:
    heard = bench.ask(case.reply, case.request, case.endpoint)
    is_success = check(case, heard)
    if case.request["model"] == "each" and "n" in case.request:
        return  # three replies, of which each is one choice
    said = expected(case)
    assert is_success == (said.failure is None), heard.raw
    if not is_success:
        assert said.failure is not None
        # Comments are left out before frames are counted.
        assert FRAME.sub("", heard.error["message"]) == FRAME.sub("", said.failure.message)
    if "stream" in case.request and heard.status == 200:
        texts = {index: (one.text, one.finish_reason) for index, one in read(heard.body, case.endpoint).choices.items()}
        assert texts == {index: (one.text, one.finish_reason) for index, one in said.choices.items()}
    elif is_success:
        for choice in heard.json["choices"]:
            text = choice["message"]["content"] if case.endpoint is Endpoint.CHAT else choice["text"]
            assert (text or "", choice["finish_reason"]) == (
                said.choices[choice["index"]].text,
                said.choices[choice["index"]].finish_reason,
            )


@EXAMPLES
@given(
    case=cases(("whole", "close"), is_right_http=True),
    cuts=st.lists(st.integers(1, 4000), max_size=4),
    pause_s=st.sampled_from(PAUSES_S),
    cut=st.integers(0, 6000),
    end=st.sampled_from(["cut", "reset", "close"]),
    spoils=st.lists(st.tuples(st.integers(0, 4000), st.binary(max_size=3), st.integers(0, 3)), max_size=3),
)
def test_http_that_is_spoiled_or_cut_anywhere_never_makes_a_success_of_a_failure(
    bench: Bench,
    case: Case,
    cuts: list[int],
    pause_s: float,
    cut: int,
    end: ReplyEnd,
    spoils: list[tuple[int, bytes, int]],
) -> None:
    raw = with_raw_http(case.reply).body
    for place, put, taken in spoils:
        raw = raw[:place] + put + raw[place + taken :]
    reply = cut_at(MockReply(pieces(raw, cuts, pause_s), raw=True), cut, end)
    is_success = check(case, bench.ask(reply, case.request, case.endpoint))
    if not spoils:
        assert not is_success or FINISHED.search(reply.body) or b"[DONE]" in reply.body


STEPS: dict[ReplyEnd, int] = {"cut": 1, "reset": 7}
SOME_BYTES = pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.tier3)])


@SOME_BYTES
@table("end", STEPS)
@table("stream", [True, False], ids=["stream", "whole"])
def test_a_right_stream_that_breaks_off_at_any_byte_is_an_error(
    bench: Bench, end: ReplyEnd, stream: bool, step: int
) -> None:
    request = {"model": "native", **SAID[Endpoint.CHAT], **({"stream": True} if stream else {})}
    role, *rest = HELLO_REPLY.pieces
    paused = with_raw_http(
        msgspec.structs.replace(HELLO_REPLY, pieces=(role, MockChunk(rest[0].text, PAUSES_S[1]), *rest[1:]))
    )
    for byte in range(0, len(paused.body), step * STEPS[end]):
        reply = cut_at(paused, byte, end)
        is_success = check(Case(Endpoint.CHAT, request, reply), bench.ask(reply, request, Endpoint.CHAT))
        assert not is_success or b"data: [DONE]" in reply.body, byte
        assert is_success or b"data: [DONE]\n\n" not in reply.body or end == "reset", byte


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@SOME_BYTES
def test_a_frame_in_two_pieces_is_whole_wherever_it_is_cut(bench: Bench, stream: bool, step: int) -> None:
    request = {"model": "native", **SAID[Endpoint.CHAT], **({"stream": True} if stream else {})}
    start, end = len(HELLO_REPLY.pieces[0].data), len(HELLO_REPLY.pieces[0].data + HELLO_REPLY.pieces[1].data)
    for byte in range(start, end, step):
        reply = MockReply(pieces(HELLO_REPLY.body, [start, byte, end], PAUSES_S[1]))
        heard = bench.ask(reply, request, Endpoint.CHAT)
        assert check(Case(Endpoint.CHAT, request, reply), heard), byte
        assert b'"content":"Hello"' in heard.body, byte
