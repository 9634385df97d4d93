"""Fast path and slow path of a pipeline give the same bytes and the same log."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorded.traces import recorded_traces
from tests.support.path_comparison import twin_of
from tests.table import table
from welldone.core.answer_format import AnswerFormat
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Reasoning, Text
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.core.state import PartState
from welldone.core.template import WORTHWHILE_CHUNKS, TransferFraming
from welldone.core.text_filters import ThinkMode
from welldone.dialects.gemini.writer import GeminiArrayFormat, GeminiFormat
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.ollama.writer import OllamaFormat
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.stream.pipeline import BUFFERED_LIMIT_CHARS, StreamPipeline

ENVELOPE = Envelope("chatcmpl-x", 1, "m")
STREAMS = {one.name: one.trace.body for one in recorded_traces() if one.trace.body.count(b"chat.completion.chunk") > 12}
FACTS = RequestFacts(include_usage=True, is_usage_forced=True)


TRANSLATED: dict[str, Callable[[], AnswerFormat]] = {
    "Messages": MessagesFormat,
    "Responses": lambda: ResponsesFormat({}),
    "Gemini": lambda: GeminiFormat(includes_thoughts=True),
    "Gemini, array": GeminiArrayFormat,
    "Ollama": lambda: OllamaFormat(is_chat=True, created_at="now"),
}


def make_pipeline(
    facts: RequestFacts = FACTS, strict: frozenset[str] = frozenset(), client: str | None = None
) -> StreamPipeline:
    dialect = None if client is None else TRANSLATED[client]()
    options = RepairOptions(strict=strict)
    return StreamPipeline(Endpoint.CHAT, fallback=ENVELOPE, facts=facts, dialect=dialect, options=options)


def through(pipeline: StreamPipeline, pieces: list[bytes]) -> tuple[bytes, list[tuple[str, int, int, int, str]]]:
    """Bytes sent, and the log."""
    sent = b"".join(pipeline.feed(piece) for piece in pieces) + pipeline.close()
    return sent, [
        (repair.rule, repair.count, repair.frame, repair.byte, repair.observed)
        for repair in pipeline.repair_log.entries()
    ]


def frames(body: bytes) -> list[bytes]:
    """One frame per read, as servers send them, so that the fast path is used."""
    return [frame + b"\n\n" for frame in body.split(b"\n\n") if frame]


@table("body", STREAMS.values(), ids=STREAMS.keys())
def test_a_recorded_stream_gives_the_same_bytes_on_both_paths(body: bytes) -> None:
    pieces = frames(body)
    assert through(make_pipeline(), pieces) == through(make_pipeline(), [b"".join(pieces)])


CHUNK = '{"id":"x","object":"chat.completion.chunk","created":%d,"model":"m","choices":[%s]%s}'
TEXT = '{"index":%d,"delta":{%s"content":%s},"logprobs":null,"finish_reason":%s%s}'


def text_frame(
    text: str, index: int = 0, role: str = "", finish: str = "null", more: str = "", top: str = "", created: int = 1
) -> bytes:
    choice = TEXT % (index, role, json.dumps(text, ensure_ascii=False), finish, more)
    return f"data: {CHUNK % (created, choice, top)}\n\n".encode(errors="surrogatepass")


def thought_frame(text: str, field: str = "reasoning_content", more: str = "") -> bytes:
    """A chunk with reasoning."""
    return text_frame(text).replace(b'"content"', f'{more}"{field}"'.encode())


OTHER_FRAMES = [
    b": ping\n\n",
    b"data: [DONE]\n\n",
    b'data: {"error":{"message":"no"}}\n\n',
    b"data: {nonsense\n\n",
    text_frame("", finish='"stop"'),
    text_frame("x", role='"role":"assistant",'),
    text_frame("x", index=1),
    text_frame("x", more=',"token_ids":null'),
    text_frame("x", more=',"token_ids":[1]'),
    text_frame("x", top=',"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}'),
    text_frame("x", top=',"odd":1'),
    text_frame("x", created=2),
    text_frame("\ufffd"),
    text_frame("\u2028"),
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}\n\n',
    b'data: {"id":"x","choices":[{"index":0,"delta":{"reasoning":"hm"}}]}\n\n',
    b'data: {"id":"x","choices":[{"index":0,"delta":{"annotations":[{"a":1}],"content":"x"}}]}\n\n',
]
TEXT_FRAMES = st.sampled_from(["a", " the", "\n", '"', "\\", "é", "漢", "aa", "<think>", "  ", "b"]).map(text_frame)
THOUGHT_FRAMES = st.sampled_from(["a", " so", "\n", '"', "é", "\u2028", "<think>"]).map(thought_frame)
OTHER_FRAMES += [
    thought_frame("x", "reasoning"),
    thought_frame("x", more='"reasoning":"x",'),
    thought_frame("x", more='"reasoning":"other",'),
    thought_frame("x", more='"content":"",'),
]
STREAM = st.lists(
    st.one_of(TEXT_FRAMES, TEXT_FRAMES, THOUGHT_FRAMES, THOUGHT_FRAMES, st.sampled_from(OTHER_FRAMES)), max_size=30
)


@given(STREAM, st.booleans(), st.sampled_from([frozenset[str](), frozenset({"all"}), frozenset({"delta-role-once"})]))
def test_any_stream_gives_the_same_bytes_on_both_paths(
    pieces: list[bytes], is_json: bool, strict: frozenset[str]
) -> None:
    facts = RequestFacts(include_usage=True, is_usage_forced=True, is_json_output=is_json)
    apart, together = make_pipeline(facts, strict), make_pipeline(facts, strict)
    start = [thought_frame("Hm"), thought_frame(" so"), text_frame("one"), text_frame(" two")]
    pieces = [text_frame("", role='"role":"assistant",'), *start, *pieces]
    assert through(apart, pieces) == through(together, [b"".join(pieces)])
    assert apart.result.invalid_json_count == together.result.invalid_json_count


@given(STREAM, st.sampled_from([*TRANSLATED]))
def test_any_stream_for_another_dialect_gives_the_same_bytes_on_both_paths(pieces: list[bytes], client: str) -> None:
    pipeline = make_pipeline(client=client)
    assert twin_of(pipeline) is not None  # the output is compared with that of the twin
    through(pipeline, [thought_frame("Hm"), thought_frame(" so"), text_frame("one"), text_frame(" two"), *pieces])


def test_the_fast_path_is_used() -> None:
    pipeline = make_pipeline()
    for word in ("one", " two", " three", " four"):
        pipeline.feed(text_frame(word))
    path = pipeline.fast_path._template
    assert path is not None
    assert pipeline.feed(text_frame(" five")) == pipeline.feed(text_frame(" five"))
    assert path.frames > 0


def counted(prompt: int, completion: int, total: int | None = None, spaces: str = "", text: str = "x") -> bytes:
    """A text chunk with usage, as some servers send it on each chunk."""
    total = prompt + completion if total is None else total
    usage = f'{{"prompt_tokens":{spaces}{prompt},{spaces}"completion_tokens":{completion},"total_tokens":{total}}}'
    return text_frame(text, top=f',"usage":{spaces}{usage}')


COUNTED = [
    *(counted(10, number) for number in (0, 1, 2, 30, 400)),
    *(counted(10, number, spaces=" ") for number in (1, 2, 3)),
    counted(0, 0),
    counted(11, 5),
    counted(10, 5, 16),
    text_frame("x", top=',"usage":null'),
    text_frame("x", top=',"usage":{"prompt_tokens":10}'),
    text_frame("x", top=',"usage":{"prompt_tokens":10,"completion_tokens":05,"total_tokens":15}'),
    text_frame("x", top=',"odd":{"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}}'),
    text_frame("x", finish='"stop"', top=',"usage":{"prompt_tokens":10,"completion_tokens":9,"total_tokens":19}'),
]


@given(
    st.lists(st.one_of(st.sampled_from(COUNTED), st.sampled_from(COUNTED[:5]), TEXT_FRAMES), max_size=24),
    st.sampled_from([None, False, True]),
    st.booleans(),
    st.sampled_from([frozenset[str](), frozenset({"all"})]),
)
def test_usage_on_each_chunk_gives_the_same_bytes_on_both_paths(
    pieces: list[bytes], include_usage: bool | None, is_continuous: bool, strict: frozenset[str]
) -> None:
    facts = RequestFacts(include_usage=include_usage, continuous_usage=is_continuous)
    apart, together = make_pipeline(facts, strict), make_pipeline(facts, strict)
    pieces = [text_frame("one"), counted(10, 1), *pieces]
    assert through(apart, pieces) == through(together, [b"".join(pieces)])
    assert apart.result == together.result


def test_a_usage_that_returns_to_an_earlier_one_is_the_last() -> None:
    facts = RequestFacts(continuous_usage=True)
    pieces = [text_frame("one"), *(counted(10, number) for number in (1, 2, 0, 2, 0, 2))]
    pipeline = make_pipeline(facts)
    through(pipeline, pieces)
    assert pipeline.usage is not None
    assert pipeline.usage.completion_tokens == 2


def test_other_chunks_among_those_with_usage_are_parsed() -> None:
    known = [counted(10, number) for number in range(10)]
    pieces = [*known, text_frame("plain"), *known, counted(10, 3, text="\u2028"), *known, counted(10, 5, 16), *known]
    assert through(make_pipeline(), pieces) == through(make_pipeline(), [b"".join(pieces)])


def test_what_an_earlier_usage_leaves_is_sent_once() -> None:
    pieces = [text_frame("x", top=',"usage":{"prompt_tokens":10}'), *(counted(10, number) for number in range(5))]
    apart = through(make_pipeline(), pieces)
    assert apart == through(make_pipeline(), [b"".join(pieces)])
    assert apart[0].count(b"unreadable_usage") == 1


def test_chunks_that_differ_in_text_and_usage_are_not_parsed() -> None:
    pipeline = make_pipeline()
    for number in range(40):
        pipeline.feed(counted(10, number, text=f"word {number}"))
    assert pipeline.fast_path._template is not None
    assert pipeline.fast_path._template.frames > 30
    pipeline.close()
    assert pipeline.usage is not None
    assert pipeline.usage.completion_tokens == 39


COMPLETION = '{"id":"x","object":"text_completion","created":1,"model":"m","choices":[{"index":%d,%s"text":%s%s}]}'


def completion_frame(text: str, index: int = 0, before: str = "", after: str = ',"finish_reason":null') -> bytes:
    return f"data: {COMPLETION % (index, before, json.dumps(text, ensure_ascii=False), after)}\n\n".encode()


OTHER_COMPLETIONS = [
    b": ping\n\n",
    b"data: [DONE]\n\n",
    completion_frame("", after=',"finish_reason":"stop"'),
    completion_frame("x", index=1),
    completion_frame("x", before='"delta":{"content":"y"},'),
    completion_frame("x", after=',"delta":{"content":"y"}'),
    completion_frame("x", after=',"logprobs":{"tokens":["x"],"token_logprobs":[-1.0]}'),
    completion_frame("\u2028"),
]
COMPLETION_TEXTS = st.sampled_from(["a", " the", "\n", '"', "é", "漢", "  "]).map(completion_frame)


@given(st.lists(st.one_of(COMPLETION_TEXTS, COMPLETION_TEXTS, st.sampled_from(OTHER_COMPLETIONS)), max_size=30))
def test_any_completion_gives_the_same_bytes_on_both_paths(pieces: list[bytes]) -> None:
    apart, together = (StreamPipeline(Endpoint.COMPLETIONS, fallback=ENVELOPE, facts=FACTS) for _ in range(2))
    pieces = [completion_frame("one"), completion_frame(" two"), *pieces]
    assert through(apart, pieces) == through(together, [b"".join(pieces)])


def test_the_fast_path_is_used_for_completions() -> None:
    pipeline = StreamPipeline(Endpoint.COMPLETIONS, fallback=ENVELOPE)
    for word in ("one", " two", " three", " four"):
        pipeline.feed(completion_frame(word))
    assert pipeline.fast_path._template is not None
    assert pipeline.fast_path._template.frames > 0


@table("top", ["", ',"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}'])
@table("client", [*TRANSLATED])
def test_text_for_a_client_with_another_dialect_takes_the_fast_path(client: str, top: str) -> None:
    pipeline = make_pipeline(client=client)

    def around(data: bytes) -> tuple[bytes, bytes] | None:
        return (b"<", b">") if data.startswith(b"<") else None

    pipeline.fast_path.use_framing(TransferFraming(around, lambda size: (b"%d:" % size, b"|")))
    for word in ("one", " two", " three", " four"):
        pipeline.feed(text_frame(word, top=top))
    rewrite = pipeline.fast_path.rewrite
    assert rewrite is not None
    assert rewrite(text_frame(" five", top=top)) is None
    sent = rewrite(b"<" + text_frame(" five", top=top) + b">")
    assert sent is not None
    size, _, rest = sent.partition(b":")
    assert int(size) == len(rest) - 1
    assert b'" five"' in rest


@table("field", ["reasoning_content", "reasoning"])
@table("client", [None, *(name for name in TRANSLATED if name != "Gemini, array")])
def test_reasoning_takes_the_fast_path(client: str | None, field: str) -> None:
    pipeline = make_pipeline(RequestFacts(include_usage=True, tool_names=frozenset({"f"})), client=client)
    sent = b"".join([pipeline.feed(thought_frame(f"word {number}", field)) for number in range(20)])
    assert pipeline.fast_path._template is not None
    assert pipeline.fast_path._template.frames > 10
    assert all(f"word {number}".encode() in sent for number in range(20))


@table("more", ['"reasoning":"x",', '"reasoning":"another",'])
def test_reasoning_in_two_fields_is_parsed(more: str) -> None:
    pipeline = make_pipeline()
    for _ in range(20):
        pipeline.feed(thought_frame("x", more=more))
    assert pipeline.fast_path.rewrite is None


def test_reasoning_for_a_client_without_thoughts_is_parsed() -> None:
    pipeline = make_pipeline(client="Gemini, array")
    assert b"".join([pipeline.feed(thought_frame("x")) for _ in range(20)]) == b""
    assert pipeline.fast_path.rewrite is None


@table("think", ["tags", "open"])
def test_reasoning_is_parsed_where_it_may_be_repeated_in_tags(think: ThinkMode) -> None:
    pipeline = StreamPipeline(Endpoint.CHAT, fallback=ENVELOPE, options=RepairOptions(think=think))
    for _ in range(20):
        pipeline.feed(thought_frame("x"))
    assert pipeline.fast_path.rewrite is None


def test_counted_reasoning_is_parsed() -> None:
    pipeline = make_pipeline(RequestFacts(count_reasoning_tokens=True))
    for _ in range(20):
        pipeline.feed(thought_frame("x"))
    assert pipeline.fast_path.rewrite is None


def test_reasoning_of_the_fast_path_is_known_to_a_continuation() -> None:
    pipeline = StreamPipeline(Endpoint.CHAT, fallback=ENVELOPE, is_continuable=True)
    for frame in (*(thought_frame("a") for _ in range(9)), *(text_frame("b") for _ in range(9))):
        pipeline.feed(frame)
    delivered = pipeline.delivered(0)
    assert delivered is not None
    segments = delivered.choices[0].segments
    assert [(one.kind[0], bytes(one.data), one.pieces) for one in segments] == [
        (Reasoning, b"a" * 9, 9),
        (Text, b"b" * 9, 9),
    ]


def test_the_limit_of_a_repeated_answer_counts_the_text_of_the_fast_path() -> None:
    pipeline = make_pipeline(client="Responses")
    piece = text_frame("x" * 2048)
    for word in ("one", " two", " three", " four"):
        pipeline.feed(text_frame(word))
    sent = b"".join(pipeline.feed(piece) for _ in range(BUFFERED_LIMIT_CHARS // 2048 + 4))
    assert pipeline.failure is not None
    assert b"event: response.failed" in sent + pipeline.close()


def test_learning_stops_if_chunks_keep_changing() -> None:
    pipeline = make_pipeline()
    for number in range(40):
        pipeline.feed(text_frame(f"word {number}", top=f',"padding":"{number}"'))
    assert pipeline.fast_path._attempts == 0


@table(("length", "is_learnt"), [(WORTHWHILE_CHUNKS + 2, True), (5, True), (2, False)])
def test_templates_that_are_of_use_are_learnt_again_without_limit(length: int, is_learnt: bool) -> None:
    pipeline = make_pipeline()
    for number in range(10):
        for word in range(length):
            pipeline.feed(text_frame(f"word {word}", top=f',"padding":"{number}"'))
    assert pipeline.fast_path._template is not None
    assert (pipeline.fast_path._template.frames > 0) is is_learnt


@table("client", [None, "Messages", "Responses"])
def test_text_between_many_short_thoughts_takes_the_fast_path(client: str | None) -> None:
    pipeline = make_pipeline(client=client)
    thought = text_frame("x").replace(b'"content"', b'"reasoning_content"')
    for word in range(8):
        for frame in (thought, *(text_frame(f" {word} {number}") for number in range(6))):
            pipeline.feed(frame)
    assert pipeline.fast_path.rewrite is not None


def test_texts_that_look_cumulative_are_recorded_once() -> None:
    texts = ["a", "ab", "abc", "abcd", *"efghij"]
    _, log = through(make_pipeline(), [text_frame(text) for text in texts])
    assert ("delta-content-incremental", 1) in {(entry[0], entry[1]) for entry in log}


@table("client", TRANSLATED)
def test_text_after_reasoning_is_written_to_a_block_of_its_own(client: str) -> None:
    texts = [text_frame(text) for text in ("one", " two", " three")]
    reasoning = b'data: {"id":"x","choices":[{"index":0,"delta":{"reasoning":"hm"}}]}\n\n'
    apart, together = make_pipeline(client=client), make_pipeline(client=client)
    pieces = [*texts, reasoning, *texts, reasoning, *texts]
    assert through(apart, pieces) == through(together, [b"".join(pieces)])


def test_a_first_role_with_text_is_recorded_once() -> None:
    role = text_frame("x", role='"role":"assistant",')
    _, log = through(make_pipeline(), [text_frame("one"), text_frame(" two"), text_frame(" three"), role, role, role])
    assert {"delta-role-content-empty": 1, "delta-role-once": 3}.items() <= {
        entry[0]: entry[1] for entry in log
    }.items()


def test_the_fast_path_supports_transfer_framing() -> None:
    def around(data: bytes) -> tuple[bytes, bytes] | None:
        return (b"<", b">") if data.startswith(b"<") else None

    pipeline = make_pipeline()
    pipeline.fast_path.use_framing(TransferFraming(around, lambda size: (b"%d:" % size, b"|")))
    plain = b"".join(pipeline.feed(text_frame(word)) for word in ("one", " two", " three", " four"))
    assert plain.count(b"data: ") == 5  # with the role; `feed` returns frames without transfer framing
    rewrite = pipeline.fast_path.rewrite
    assert rewrite is not None
    assert rewrite(text_frame(" five")) is None
    sent = rewrite(b"<" + text_frame(" five") + b">")
    assert sent is not None
    size, _, rest = sent.partition(b":")
    assert rest.endswith(b"\n\n|")
    assert int(size) == len(rest) - 1
    assert b'"content":" five"' in rest


def test_a_part_has_started_after_its_first_chunk() -> None:
    pipeline = make_pipeline()
    pipeline.feed(b": ping\n\n")
    assert pipeline.part_state(0) is PartState.WAITING
    pipeline.feed(text_frame("a"))
    assert pipeline.part_state(0) is PartState.ANSWERING


@table("text", [" five", ' "six"'])
def test_a_wrong_rewrite_is_detected(text: str) -> None:
    pipeline = make_pipeline()
    for word in ("one", " two", " three", " four"):
        pipeline.feed(text_frame(word))
    template = pipeline.fast_path._template
    assert template is not None
    template._sent_prefix = template._sent_prefix.replace(b"chat.completion.chunk", b"chat.completion.other")
    template._sized.clear()
    with pytest.raises(AssertionError, match="with the fast path"):
        pipeline.feed(text_frame(text))


def test_a_difference_between_the_paths_is_reported() -> None:
    pipeline = make_pipeline()
    twin_of(pipeline).feed(text_frame("only the slow path gets this"))
    with pytest.raises(AssertionError, match="without it"):
        pipeline.feed(text_frame("Hello"))
