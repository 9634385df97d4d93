"""Property tests over sockets: whatever an upstream sends, the client gets a valid response or an error."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.strategies import ENVELOPES, any_bytes, damaged, recorded_streams
from tests.server.persistent_gateway import PersistentGateway, persistent_gateway
from tests.server.running_server import RecordedReply
from tests.table import table
from welldone.core.catalog import RULES, Repairability
from welldone.core.collect import CollectedReply as Collected
from welldone.core.collect import collect
from welldone.core.envelope import Endpoint
from welldone.core.fields import UNFINISHED
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RequestFacts, read_request_facts
from welldone.dialects.chat.reader import EventReader
from welldone.gateway.error_mapping import unfinished_upstream
from welldone.mock.script import HELLO_REPLY, MockChunk, MockReply, ReplyEnd, ReplyFraming, cut_at, with_raw_http
from welldone.rules.judge import judge
from welldone.stream.pipeline import StreamPipeline

Json = dict[str, Any]

UNKNOWABLE = {"use-final-chunk", "cmpl-usage-chunk"}
"""Missing usage is not invented."""
FAILED = re.compile(rb'data: \{"error":[^\n]*\n\ndata: \[DONE\]\n\n$')
NUMBER = re.compile(r" \(frame \d+\)|[\d,]+(?= of its answers)")
FINISHED = re.compile(rb"finish_reason[^:]{0,3}:\s*[\"'][^\"']")
SAID: dict[Endpoint, Json] = {
    Endpoint.CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    Endpoint.COMPLETIONS: {"prompt": "Hi"},
}
TYPES = ("text/event-stream", "text/event-stream; charset=utf-8", "application/json", "text/plain", "text/html", "")
PAUSES_S = (0.0, 0.003)
"""Pauses between chunks. With the second, the client has received a chunk when the upstream sends the next."""
STATUSES = (200, 200, 200, 200, 200, 200, 201, 204, 307, 400, 404, 429, 500, 503)


@pytest.fixture(scope="module")
def running_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PersistentGateway]:
    with persistent_gateway(tmp_path_factory.mktemp("gateway")) as made:
        yield made


class Case(NamedTuple):
    """A request, and the reply of the upstream."""

    endpoint: Endpoint
    request: Json
    reply: MockReply

    @property
    def body(self) -> bytes:
        return self.reply.body


bodies = st.one_of(
    damaged(),
    st.tuples(st.sampled_from([Endpoint.CHAT, Endpoint.COMPLETIONS]), any_bytes),
    st.sampled_from(recorded_streams()),
)
"""Broken streams, random bytes, and valid streams."""


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
    """Generate a body, perhaps truncated, in any chunks, with any headers and any end."""
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
    """Split the body into separately written chunks."""
    ends = [*sorted(cut for cut in cuts if cut < len(body)), len(body)]
    spans = zip([0, *ends], ends, strict=False)
    return tuple(MockChunk(base64=body[start:end], after_s=pause_s) for start, end in spans if end > start)


def check(case: Case, response: RecordedReply) -> bool:
    """Check that the response is valid; return whether it is a success."""
    trace = msgspec.structs.replace(response.capture, request=case.request, endpoint=case.endpoint.value)
    broken = {
        rule for rule in judge(trace).counts if RULES[rule].repairability is not Repairability.REPORT_ONLY
    } - UNKNOWABLE
    assert broken == set(), response.raw
    assert trace.complete, response.raw
    if response.status != 200:
        assert 400 <= response.status <= 504
        assert response.error["message"]
        return False
    has_failed = bool(FAILED.search(response.body))
    assert not has_failed or "stream" in case.request
    return not has_failed


def is_bound_to_fail(case: Case) -> bool:
    """Whether the bytes alone show a failure. A stream with `[DONE]` is complete."""
    reply = case.reply
    is_cut = (reply.end, reply.framing) in {("cut", "chunked"), ("reset", "chunked"), ("reset", "close")}
    is_unsaid = b"[DONE]" not in reply.body
    return reply.status != 200 or (is_unsaid and (is_cut or not FINISHED.search(reply.body)))


def expected(case: Case) -> Collected:
    """Return what the core makes of the same bytes."""
    fallback = ENVELOPES[case.endpoint]
    pipe = StreamPipeline(case.endpoint, fallback=fallback, facts=read_request_facts(case.request))
    return read(pipe.feed(case.body) + pipe.close(), case.endpoint)


def read(data: bytes, endpoint: Endpoint) -> Collected:
    """Collect a valid stream."""
    reader = EventReader(endpoint, fallback=ENVELOPES[endpoint], facts=RequestFacts(), repair_log=RepairLog())
    return collect(reader.feed(data) + reader.close())


@given(case=cases(("whole", "close", "cut", "reset")))
def test_the_output_is_valid_and_no_failure_looks_like_success(running_gateway: PersistentGateway, case: Case) -> None:
    is_success = check(case, running_gateway.post(case.reply, case.request, case.endpoint))
    assert not (is_success and is_bound_to_fail(case))


@given(case=cases(("whole", "close"), is_right_http=True))
def test_the_gateway_sends_what_the_core_produces(running_gateway: PersistentGateway, case: Case) -> None:
    response = running_gateway.post(case.reply, case.request, case.endpoint)
    is_success = check(case, response)
    if case.request["model"] == "each" and "n" in case.request:
        return  # three replies, of which each is one choice
    collected = expected(case)
    assert is_success == (collected.failure is None), response.raw
    if not is_success:
        assert collected.failure is not None
        # Comments are left out before frames are counted.
        expected_failure = unfinished_upstream(1) if collected.failure == UNFINISHED else collected.failure
        sent, own = (NUMBER.sub("", text) for text in (response.error["message"], expected_failure.message))
        assert sent == own or (sent.endswith("…") and own.startswith(sent[:-1]))  # a long message is shortened
    if "stream" in case.request and response.status == 200:
        texts = {
            index: (one.text, one.finish_reason) for index, one in read(response.body, case.endpoint).choices.items()
        }
        assert texts == {index: (one.text, one.finish_reason) for index, one in collected.choices.items()}
    elif is_success:
        for choice in response.json["choices"]:
            text = choice["message"]["content"] if case.endpoint is Endpoint.CHAT else choice["text"]
            assert (text or "", choice["finish_reason"]) == (
                collected.choices[choice["index"]].text,
                collected.choices[choice["index"]].finish_reason,
            )


@given(
    case=cases(("whole", "close"), is_right_http=True),
    cuts=st.lists(st.integers(1, 4000), max_size=4),
    pause_s=st.sampled_from(PAUSES_S),
    cut=st.integers(0, 6000),
    end=st.sampled_from(["cut", "reset", "close"]),
    spoils=st.lists(st.tuples(st.integers(0, 4000), st.binary(max_size=3), st.integers(0, 3)), max_size=3),
)
def test_broken_http_never_turns_a_failure_into_success(
    running_gateway: PersistentGateway,
    case: Case,
    cuts: list[int],
    pause_s: float,
    cut: int,
    end: ReplyEnd,
    spoils: list[tuple[int, bytes, int]],
) -> None:
    raw = with_raw_http(case.reply).body
    for offset, put, taken in spoils:
        raw = raw[:offset] + put + raw[offset + taken :]
    reply = cut_at(MockReply(pieces(raw, cuts, pause_s), raw=True), cut, end)
    is_success = check(case, running_gateway.post(reply, case.request, case.endpoint))
    if not spoils:
        assert not is_success or FINISHED.search(reply.body) or b"[DONE]" in reply.body


STEPS: dict[ReplyEnd, int] = {"cut": 1, "reset": 5}
SOME_BYTES = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.tier3)])


@SOME_BYTES
@table("end", STEPS)
@table("stream", [True, False], ids=["stream", "whole"])
def test_a_valid_stream_truncated_before_its_finish_reason_is_an_error(
    running_gateway: PersistentGateway, end: ReplyEnd, stream: bool, step: int
) -> None:
    request = {"model": "native", **SAID[Endpoint.CHAT], **({"stream": True} if stream else {})}
    role, *rest = HELLO_REPLY.pieces
    paused = with_raw_http(
        msgspec.structs.replace(HELLO_REPLY, pieces=(role, MockChunk(rest[0].text, PAUSES_S[1]), *rest[1:]))
    )
    for byte in range(0, len(paused.body), step * STEPS[end]):
        reply = cut_at(paused, byte, end)
        is_success = check(Case(Endpoint.CHAT, request, reply), running_gateway.post(reply, request, Endpoint.CHAT))
        assert not is_success or FINISHED.search(reply.body), byte
        assert is_success or b'"finish_reason":"stop"}]}\n\n' not in reply.body or end == "reset", byte


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@SOME_BYTES
def test_a_frame_split_anywhere_is_read_as_one(running_gateway: PersistentGateway, stream: bool, step: int) -> None:
    request = {"model": "native", **SAID[Endpoint.CHAT], **({"stream": True} if stream else {})}
    start, end = len(HELLO_REPLY.pieces[0].data), len(HELLO_REPLY.pieces[0].data + HELLO_REPLY.pieces[1].data)
    for byte in range(start, end, step):
        reply = MockReply(pieces(HELLO_REPLY.body, [start, byte, end], PAUSES_S[1]))
        response = running_gateway.post(reply, request, Endpoint.CHAT)
        assert check(Case(Endpoint.CHAT, request, reply), response), byte
        assert b'"content":"Hello"' in response.body, byte
