"""Templates of streams: what they give equals what a pipeline gives, for any input."""

import json
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorded.traces import recorded_traces
from tests.support.path_comparison import give_twin
from tests.table import table
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.repair_log import RepairEntry, RepairResult
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.core.state import PartState
from welldone.core.template import TransferFraming
from welldone.stream.pipeline import StreamPipeline
from welldone.stream.stream_template import (
    CACHED_TEMPLATES,
    TEXTS_LIMIT,
    StreamTemplate,
    TemplateCache,
    TemplatedStream,
    TemplateSlot,
    learn_stream_template,
)

FACTS = RequestFacts(include_usage=True, is_usage_forced=True, count_reasoning_tokens=True, choice_count=1)
FALLBACK = Envelope("chatcmpl-x", 1, "m")


def make_pipeline(
    fallback: Envelope = FALLBACK, facts: RequestFacts = FACTS, think: str = "no", model: str = "ours"
) -> StreamPipeline:
    options = RepairOptions(think=think)  # type: ignore[arg-type]
    return StreamPipeline(Endpoint.CHAT, fallback=fallback, facts=facts, model=model, options=options)


class Server(NamedTuple):
    """How a server writes its chunks. `%s` are id and created; texts, reason and usage are JSON."""

    role: str
    text: str
    finish: str
    usage: str
    counts: str = '{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}'

    def frames(
        self,
        texts: list[str],
        counts: tuple[int, int, int] | None = (9, 2, 11),
        *,
        reason: str = "stop",
        name: str = "chatcmpl-7e57",
        created: object = 1700000000,
    ) -> list[bytes]:
        """Frames of a right stream. Texts are the content of JSON strings."""
        frames = [
            self.role,
            *(self.text.replace("TEXT", text) for text in texts),
            self.finish.replace("REASON", reason),
        ]
        if counts is not None:
            frames.append(self.usage.replace("USAGE", self.counts % counts))
        lines = [frame.replace("ID", name).replace("CREATED", str(created)) for frame in frames]
        return [f"data: {line}\n\n".encode(errors="surrogatepass") for line in [*lines, "[DONE]"]]


OPENAI_HEAD = '{"id":"ID","object":"chat.completion.chunk","created":CREATED,"model":"100%",'
OPENAI = Server(
    OPENAI_HEAD
    + '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}',
    OPENAI_HEAD + '"choices":[{"index":0,"delta":{"content":"TEXT"},"finish_reason":null}],"usage":null}',
    OPENAI_HEAD + '"choices":[{"index":0,"delta":{},"finish_reason":"REASON"}],"usage":null}',
    OPENAI_HEAD + '"choices":[],"usage":USAGE}',
)
LLAMA_TAIL = '"created": CREATED, "id": "ID", "model":"m", "object":"chat.completion.chunk"'
LLAMA = Server(
    '{"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],' + LLAMA_TAIL + "}",
    '{"choices":[{"finish_reason":null,"index":0,"delta":{"content":"TEXT"}}],' + LLAMA_TAIL + "}",
    '{"choices":[{"finish_reason":"REASON","index":0,"delta":{}}],' + LLAMA_TAIL + "}",
    '{"choices":[],'
    + LLAMA_TAIL
    + ',"usage":USAGE,"timings":{"cache_n":3,"prompt_ms":18.25,"per_second":5.554475518}}',
    '{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":3}}',
)
SERVERS = {"openai": OPENAI, "llama": LLAMA}


def learn(received: bytes, facts: RequestFacts = FACTS) -> StreamTemplate:
    template = learn_stream_template(received, partial(make_pipeline, facts=facts))
    assert template is not None
    return template


TEMPLATES = {name: learn(b"".join(server.frames(["first"]))) for name, server in SERVERS.items()}


class Output(NamedTuple):
    """What a client gets, and what is known of it."""

    sent: bytes
    result: RepairResult
    finish_reasons: tuple[str, ...]
    is_templated: bool


def through_pipeline(pieces: list[bytes], facts: RequestFacts = FACTS) -> Output:
    pipeline = make_pipeline(facts=facts)
    sent = b"".join(map(pipeline.feed, pieces)) + pipeline.close()
    return Output(sent, pipeline.result, pipeline.finish_reasons, is_templated=False)


FRAMING = TransferFraming(
    lambda data: (b"<", b">") if data.endswith(b">") else None, lambda size: (b"%d(" % size, b")")
)


def rewrite(stream: TemplatedStream, piece: bytes) -> bytes | None:
    """Offer a piece with its framing."""
    sent = stream.rewrite(b"<%b>" % piece)
    if sent is None:
        return None
    size, _, data = sent.partition(b"(")
    assert len(data) == int(size) + 1
    return data.removesuffix(b")")


def through_template(
    template: StreamTemplate, pieces: list[bytes], facts: RequestFacts = FACTS, *, is_framed: bool = False
) -> Output:
    """As a server does it: with a pipeline from the first piece that does not follow the template."""
    stream = TemplatedStream(template, partial(make_pipeline, facts=facts))
    give_twin(stream)
    stream.use_framing(FRAMING)
    sent = b""
    for number, piece in enumerate(pieces):
        output = rewrite(stream, piece) if is_framed else None
        if output is None:
            output = stream.feed(piece)
        if output is None:
            pipeline = stream.restore()
            assert rewrite(stream, piece) is None
            sent += b"".join(map(pipeline.feed, pieces[number:])) + pipeline.close()
            return Output(sent, pipeline.result, pipeline.finish_reasons, is_templated=False)
        sent += output
    last = stream.close()
    if last is not None:
        assert stream.restore().result == stream.result
        return Output(sent + last, stream.result, stream.finish_reasons, is_templated=True)
    pipeline = stream.restore()
    sent += pipeline.close()
    return Output(sent, pipeline.result, pipeline.finish_reasons, is_templated=False)


def assert_same(template: StreamTemplate, pieces: list[bytes], facts: RequestFacts = FACTS) -> bool:
    """Whether the template was used to the end."""
    output = through_template(template, pieces, facts)
    assert output[:3] == through_pipeline(pieces, facts)[:3]
    assert output == through_template(template, pieces, facts, is_framed=True)
    return output.is_templated


@table("name", SERVERS)
@table("reason", ["stop", "length"])
@table(
    "texts", [["one"], ["a", " b", "ab"], [" é", '\\"', "\\\\", "漢字", "100%"], [str(n) for n in range(TEXTS_LIMIT)]]
)
def test_a_stream_that_differs_in_its_values_follows_the_template(name: str, reason: str, texts: list[str]) -> None:
    frames = SERVERS[name].frames(texts, (7, 5, 12), reason=reason, name="cmpl_0-1", created=1)
    assert assert_same(TEMPLATES[name], frames)
    assert assert_same(TEMPLATES[name], [b"".join(frames)])


def with_new_times(frames: list[bytes], starts: tuple[int, ...]) -> list[bytes]:
    """Frames with a later `created` from each of these frames on."""
    times = [b"%d" % (1700000000 + sum(number >= start for start in starts)) for number in range(len(frames))]
    return [frame.replace(b"1700000000", time) for frame, time in zip(frames, times, strict=True)]


@table("name", SERVERS)
@table("starts", [(1,), (2,), (3,), (4,), (5,), (6,), (1, 2), (2, 5, 6), (3, 4, 5, 6)])
def test_the_time_may_change_within_a_stream(name: str, starts: tuple[int, ...]) -> None:
    frames = SERVERS[name].frames(["a", " b", "c", " d"])
    assert assert_same(TEMPLATES[name], with_new_times(frames, starts))
    assert assert_same(TEMPLATES[name], [b"".join(with_new_times(frames, starts))])
    learnt_later = learn(b"".join(with_new_times(frames, starts)))
    assert assert_same(learnt_later, frames)


def test_the_time_may_not_change_if_that_rule_is_strict() -> None:
    def make_strict(fallback: Envelope = FALLBACK) -> StreamPipeline:
        options = RepairOptions(strict=frozenset({"env-created-constant"}))
        return StreamPipeline(Endpoint.CHAT, fallback=fallback, facts=FACTS, options=options)

    template = learn_stream_template(b"".join(FRAMES), make_strict)
    assert template is not None
    stream = TemplatedStream(template, make_strict)
    give_twin(stream)
    assert stream.feed(b"".join(FRAMES)) is not None
    later = TemplatedStream(template, make_strict)
    assert later.feed(b"".join(with_new_times(FRAMES, (2,)))) is None


def test_usage_that_the_client_did_not_request_is_not_sent_but_known() -> None:
    facts = RequestFacts(include_usage=False, is_usage_forced=True, choice_count=1)
    frames = OPENAI.frames(["x"], (4, 1, 5))
    template = learn(b"".join(OPENAI.frames(["first"])), facts)
    assert assert_same(template, frames, facts)
    assert b'"usage"' not in through_template(template, frames, facts).sent
    usage = through_template(template, frames, facts).result.usage
    assert usage is not None
    assert usage.prompt_tokens == 4


def test_a_stream_without_usage_follows_its_template() -> None:
    facts = RequestFacts(include_usage=False, is_usage_forced=True, choice_count=1)
    template = learn(b"".join(OPENAI.frames(["first"], None)), facts)
    assert assert_same(template, OPENAI.frames(["x", " y"], None), facts)
    assert not assert_same(template, OPENAI.frames(["x", " y"]), facts)


FRAMES = OPENAI.frames(["one", " two"])
ROLE, TEXT, _, FINISH, USAGE, DONE = FRAMES
OTHER = {
    "nothing": [],
    "a part of a frame": [ROLE[:-1]],
    "no role": FRAMES[1:],
    "another role": [LLAMA.frames([])[0], *FRAMES[1:]],
    "no text": [ROLE, FINISH, USAGE, DONE],
    "an empty text": [ROLE, TEXT.replace(b"one", b""), *FRAMES[1:]],
    "a text that is escaped otherwise": [ROLE, TEXT.replace(b"one", b"\\u00e9"), *FRAMES[1:]],
    "a text that breaks lines": [ROLE, TEXT.replace(b"one", "\u2028".encode()), *FRAMES[1:]],
    "a text that is not UTF-8": [ROLE, TEXT.replace(b"one", b"\xff"), *FRAMES[1:]],
    "growing texts": OPENAI.frames(["a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg", "abcdefgh", "abcdefghi"]),
    "too many texts": OPENAI.frames([str(n) for n in range(TEXTS_LIMIT + 1)]),
    "another id": [ROLE, TEXT.replace(b"7e57", b"1234"), *FRAMES[1:]],
    "another id of the usage": [*FRAMES[:-2], USAGE.replace(b"7e57", b"1234"), DONE],
    "an id with quotes": [frame.replace(b"7e57", b'\\"') for frame in FRAMES],
    "milliseconds": OPENAI.frames(["one"], created=1700000000123),
    "another finish reason": OPENAI.frames(["one"], reason="eos"),
    "a field in the finish": [*FRAMES[:-3], FINISH.replace(b"{}", b'{"odd":1}'), USAGE, DONE],
    "no finish": [*FRAMES[:-3], USAGE, DONE],
    "a second finish": [*FRAMES[:-2], FINISH, USAGE, DONE],
    "a wrong sum": OPENAI.frames(["one"], (9, 2, 12)),
    "usage of zeros": OPENAI.frames(["one"], (0, 0, 0)),
    "no usage": [*FRAMES[:-2], DONE],
    "usage twice": [*FRAMES[:-1], USAGE, DONE],
    "no end marker": FRAMES[:-1],
    "an end marker twice": [*FRAMES, DONE],
    "a text after the end": [*FRAMES, TEXT],
    "an error": [*FRAMES[:-3], b'data: {"error":{"message":"no"}}\n\n'],
    "a comment": [ROLE, b": ping\n\n", *FRAMES[1:]],
    "a tool call": [ROLE, TEXT.replace(b'"content":"one"', b'"tool_calls":[{"index":0}]'), *FRAMES[1:]],
}


@table("pieces", OTHER.values(), ids=OTHER)
def test_any_other_stream_is_repaired_by_a_pipeline(pieces: list[bytes]) -> None:
    assert not assert_same(TEMPLATES["openai"], pieces)
    assert not assert_same(TEMPLATES["openai"], [b"".join(pieces)])


def test_a_float_that_would_be_written_differently_is_repaired_by_a_pipeline() -> None:
    frames = [frame.replace(b"18.25", b"18.250") for frame in LLAMA.frames(["one"])]
    assert not assert_same(TEMPLATES["llama"], frames)


def test_too_many_texts_are_told_from_another_stream() -> None:
    streams = [TemplatedStream(TEMPLATES["openai"], make_pipeline) for _ in range(2)]
    long, other = streams
    assert [long.feed(b"".join(OTHER["too many texts"])), other.feed(b"".join(OTHER["an error"]))] == [None, None]
    assert [one.is_overlong for one in streams] == [True, False]


TEXTS = st.lists(st.one_of(st.sampled_from(["a", "ab", " ", "\\n", "<think>", "\\u00e9"]), st.text(max_size=5)))
CHANGES = st.sampled_from(
    [(b"", b""), (b"null", b"1"), (b"content", b"text"), (b":", b": "), (b"0", b"1"), (b"}", b"")]
)


@given(
    name=st.sampled_from(sorted(SERVERS)),
    texts=TEXTS,
    counts=st.tuples(*[st.integers(0, 3)] * 3),
    reason=st.sampled_from(["stop", "length", "content_filter"]),
    created=st.one_of(st.integers(0, 10**12), st.just("null"), st.just(1700000000)),
    starts=st.lists(st.integers(0, 6), max_size=2).map(tuple),
    change=CHANGES,
    cuts=st.lists(st.integers(0, 2000), max_size=4),
)
def test_any_stream_gives_the_same_with_and_without_the_template(
    name: str,
    texts: list[str],
    counts: tuple[int, int, int],
    reason: str,
    created: object,
    starts: tuple[int, ...],
    change: tuple[bytes, bytes],
    cuts: list[int],
) -> None:
    frames = SERVERS[name].frames([text.replace("\n", "") for text in texts], counts, reason=reason, created=created)
    frames = with_new_times(frames, starts)
    frames[len(texts) // 2] = frames[len(texts) // 2].replace(*change, 1)
    whole = b"".join(frames)
    places = [0, *sorted(cuts), len(whole)]
    assert_same(TEMPLATES[name], [whole[start:end] for start, end in pairwise(places)])
    assert_same(TEMPLATES[name], frames)


RECORDED = {one.name: one.trace.body for one in recorded_traces() if b"chat.completion.chunk" in one.trace.body}


def test_recorded_streams_give_the_same_with_their_own_templates() -> None:
    learnt = 0
    for body in RECORDED.values():
        template = learn_stream_template(body, make_pipeline)
        if template is not None:
            learnt += 1
            frames = [frame + b"\n\n" for frame in body.split(b"\n\n") if frame]
            assert_same(template, frames)
            assert_same(template, frames[:TEXTS_LIMIT] + frames[-3:])
    assert learnt >= 3


@table(
    "frames",
    [
        FRAMES[:-1],
        [*FRAMES, b"\0"],
        [frame.replace(b'"model":"', b'"model":"\0') for frame in FRAMES],
        [frame.replace(b'"model":"', b'"model":"%(text)b') for frame in FRAMES],
        [ROLE, FINISH, USAGE, DONE],
        [*FRAMES[:-2], USAGE, USAGE, DONE],
        [frame.replace(b'"id"', b'"di"') for frame in FRAMES],
        [frame.replace(b"1700000000", b"17.5") for frame in FRAMES],
        [*FRAMES[:-2], USAGE.replace(b"created", b"made"), DONE],
        [*FRAMES[:-2], USAGE.replace(b"chatcmpl", b"other"), DONE],
        [ROLE, FINISH.replace(b'"stop"', b"null"), *FRAMES[1:]],
        [*FRAMES[:-2], USAGE.replace(b"total_tokens", b"total"), DONE],
        [*FRAMES[:-2], USAGE.replace(b":11", b":11.0"), DONE],
        [*FRAMES[:-2], USAGE.replace(b'"choices":[],"usage"', b'"choices":[],"cost"'), DONE],
        [*FRAMES[:-2], USAGE.replace(b'"usage":{', b'"usage":{' + b'"n":1,' * 200), DONE],
        [
            ROLE,
            *[TEXT.replace(b'"delta"', b'"token_ids":[1],"delta"')] * 2,
            FINISH.replace(b"{}", b'{"role":"x"}'),
            USAGE,
            DONE,
        ],
    ],
)
def test_nothing_is_learnt_from_other_streams(frames: list[bytes]) -> None:
    assert learn_stream_template(b"".join(frames), make_pipeline) is None


@table(
    "pipeline",
    [
        partial(make_pipeline, think="open"),
        partial(make_pipeline, think="tags"),
        partial(make_pipeline, model="m%(text)b"),
        partial(make_pipeline, facts=RequestFacts(stop_strings=("zzz",), choice_count=1)),
        partial(make_pipeline, facts=RequestFacts(tool_names=frozenset({"f"}), choice_count=1)),
        partial(make_pipeline, facts=RequestFacts(is_json_output=True, choice_count=1)),
        partial(make_pipeline, facts=RequestFacts(include_usage=True, choice_count=2)),
    ],
)
def test_nothing_is_learnt_if_a_pipeline_gives_something_else(pipeline: partial[StreamPipeline]) -> None:
    assert learn_stream_template(b"".join(FRAMES), pipeline) is None


def test_a_wrong_template_is_an_error_in_debug_mode() -> None:
    template = TEMPLATES["openai"]
    (role,) = template.frames[PartState.WAITING]
    for wrong in (
        template._replace(frames={**template.frames, PartState.WAITING: (role._replace(sent=b"data: {}\n\n"),)}),
        template._replace(repairs=(RepairEntry("delta-role-once", 1, 1, 0, ""),)),
        template._replace(end=b""),
    ):
        with pytest.raises(AssertionError, match="with the template"):
            through_template(wrong, FRAMES)


def test_a_stream_knows_the_repairs_of_the_frames_so_far() -> None:
    stream = TemplatedStream(TEMPLATES["llama"], make_pipeline)
    role, text, *_ = LLAMA.frames(["x"])
    found = [[(entry.rule, entry.byte) for entry in stream.result.repairs] for _ in map(stream.feed, [b"", role, text])]
    assert found == [[], [], [("delta-role-content-empty", len(role))]]
    assert stream.state is PartState.ANSWERING


def test_a_template_is_learnt_from_the_first_stream_and_again_after_a_change() -> None:
    slot = TemplateSlot()
    assert slot.begin(make_pipeline) is None
    assert slot.is_learning
    slot.learn(b"".join(FRAMES), make_pipeline)
    assert not slot.is_learning
    stream = slot.begin(make_pipeline)
    assert stream is not None
    assert stream.feed(LLAMA.frames([])[0]) is None
    slot.report(is_match=False)
    assert slot.begin(make_pipeline) is None
    assert slot.is_learning


def test_learning_is_given_up_if_streams_never_follow() -> None:
    slot = TemplateSlot()
    learnt = 0
    while slot.is_learning:
        slot.learn(b"data: x\n\n", make_pipeline)
        learnt += 1
    assert 1 < learnt < 20
    other = TemplateSlot()
    for _ in range(3 * learnt):
        other.learn(b"".join(FRAMES), make_pipeline)
        other.report(is_match=True)
        other.report(is_match=False)
    assert other.is_learning


def test_a_stream_with_a_template_makes_no_pipeline() -> None:
    slot = TemplateSlot()
    slot.learn(b"".join(FRAMES), make_pipeline)
    made = []
    stream = slot.begin(lambda: made.append(1) or make_pipeline())  # type: ignore[func-returns-value]
    assert stream is not None
    role, *texts, finish, usage, done = OPENAI.frames(["a", "b", "c"])
    sent = [stream.feed(b"".join([role, *texts[:2]])), stream.rewrite(texts[2]), stream.feed(finish + usage + done)]
    assert None not in [*sent, stream.close()]
    assert len(made) == 1  # the twin


def test_the_number_of_templates_is_limited() -> None:
    cache = TemplateCache()
    first = cache.slot(0)
    assert [cache.slot(key) is first for key in (0, *range(1, CACHED_TEMPLATES), 0)][-1]
    cache.slot(CACHED_TEMPLATES)
    assert cache.slot(0) is not first


def test_the_sent_chunks_are_right() -> None:
    sent = through_template(TEMPLATES["openai"], FRAMES).sent
    chunks = [json.loads(frame[6:]) for frame in sent.split(b"\n\n") if frame.startswith(b"data: {")]
    assert [chunk["model"] for chunk in chunks] == ["ours"] * 5
    assert [choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"]] == [
        "",
        "one",
        " two",
        None,
    ]


def test_only_one_frame_with_its_framing_is_rewritten() -> None:
    stream = TemplatedStream(TEMPLATES["openai"], make_pipeline)
    stream.use_framing(FRAMING)
    assert stream.feed(b"".join(FRAMES[:3])) is not None
    assert [rewrite(stream, piece) for piece in (TEXT + TEXT, TEXT[:-1], FINISH, b"")] == [None] * 4
    assert stream.rewrite(TEXT) is None
    assert rewrite(stream, TEXT) is not None
