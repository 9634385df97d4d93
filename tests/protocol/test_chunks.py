"""One chunk of a stream, as events."""

import pytest

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    FALLBACK,
    GONE,
    HEAD,
    choice,
    chunk,
    count,
    counted,
    entry,
    finish,
    role,
    rules,
    say,
    text,
    text_choice,
    text_chunk,
    text_end,
    words,
)
from tests.table import table
from welldone.protocol.chunks import ChunkReader
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import (
    ChoiceStart,
    Event,
    Failure,
    FieldLocation,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    Reasoning,
    Text,
    UnknownFields,
    Usage,
)
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.request_facts import RequestFacts, read_request_facts

OPEN, HELLO, STOP = ChoiceStart(0), Text(0, "Hello"), Finish(0, "stop")
QUIET = KeepAlive(is_chunk=True)
USAGE = Usage(5, 3, 8, {})
LOGPROBS = {"content": [entry("a")], "refusal": None}

NOW = UnknownFields(0, FieldLocation.CHOICE, {}, in_own_chunk=True)


class Read:
    """What a reader makes of chunks; it stops at a failure."""

    def __init__(self, *chunks: Json, endpoint: Endpoint = CHAT, asked: RequestFacts | None = None) -> None:
        notes = RepairLog()
        self.reader = ChunkReader(endpoint, fallback=FALLBACK, facts=asked or RequestFacts(), repair_log=notes)
        self.events: list[Event] = []
        self.failure: Failure | None = None
        for one in chunks:
            self.failure = self.failure or self.reader.read(one, self.events)
        self.rules = rules(notes)


def test_right_chunks_are_read_as_they_are() -> None:
    read = Read(role(), *words("Hel", "lo"), finish(), counted(count()))
    assert read.events == [OPEN, Text(0, "Hel"), Text(0, "lo"), STOP, USAGE]
    assert read.rules == []
    assert read.reader.envelope == HEAD
    assert read.reader.has_usage_chunk is True


def test_right_completions_are_read_as_they_are() -> None:
    read = Read(text("Hel"), text("lo"), text("b", 1), text_end(), text_end("length", 1), endpoint=COMPLETIONS)
    assert read.events == [Text(0, "Hel"), Text(0, "lo"), Text(1, "b"), STOP, Finish(1, "length")]
    assert read.rules == []


@table(
    ("given", "events"),
    [
        (say({}), [QUIET]),
        (say({"content": ""}), [QUIET]),
        (chunk(choice({}), x=1), [UnknownFields(0, FieldLocation.CHUNK, {"x": 1}), NOW]),
        (
            chunk(choice({}, None, 2), x=1),
            [
                UnknownFields(0, FieldLocation.CHUNK, {"x": 1}),
                UnknownFields(2, FieldLocation.CHOICE, {}, in_own_chunk=True),
            ],
        ),
        (chunk(choice({"content": "a"}), x=1), [UnknownFields(0, FieldLocation.CHUNK, {"x": 1}), Text(0, "a")]),
        (chunk(x=1), [UnknownFields(0, FieldLocation.CHUNK, {"x": 1})]),
        (
            chunk(choice({}), service_tier="flex"),
            [UnknownFields(0, FieldLocation.CHUNK, {"service_tier": "flex"}), NOW],
        ),
        (chunk(choice({}), service_tier=None), [QUIET]),
        (chunk(choice({}), obfuscation="xx"), [UnknownFields(0, FieldLocation.CHUNK, {"obfuscation": "xx"}), NOW]),
        (say({}, x=1), [UnknownFields(0, FieldLocation.CHOICE, {"x": 1}), NOW]),
        (say({"content": "a"}, x=1), [UnknownFields(0, FieldLocation.CHOICE, {"x": 1}), Text(0, "a")]),
        (say({"x": 1}), [UnknownFields(0, FieldLocation.DELTA, {"x": 1}), NOW]),
        (
            say({"x": 1}, y=2),
            [UnknownFields(0, FieldLocation.CHOICE, {"y": 2}), UnknownFields(0, FieldLocation.DELTA, {"x": 1}), NOW],
        ),
        (say({}, logprobs=LOGPROBS), [Logprobs(0, LOGPROBS), NOW]),
        (say({"content": "a"}, logprobs=LOGPROBS), [Logprobs(0, LOGPROBS), Text(0, "a")]),
        (
            say({"content": "a", "reasoning_content": "b"}, logprobs=LOGPROBS),
            [Reasoning(0, "b"), Logprobs(0, LOGPROBS), Text(0, "a")],
        ),
        (say({"content": "a"}, logprobs=GONE), [Text(0, "a")]),
    ],
)
def test_what_stands_beside_the_text_is_carried_on(given: Json, events: list[Event]) -> None:
    read = Read(given)
    assert read.events == events
    assert read.rules == []


@table(
    ("given", "events", "noted"),
    [
        # envelope
        (chunk(choice({"content": "a"}), id=""), [Text(0, "a")], ["env-id-present"]),
        (chunk(choices=None), [], ["env-choices-array"]),
        (chunk(choices=GONE), [], ["env-choices-array"]),
        (chunk(id="", object=""), [], ["env-placeholder-chunk"]),
        (chunk(), [], ["env-placeholder-chunk"]),
        (chunk(usage=None, service_tier=None), [], ["env-placeholder-chunk"]),
        *[
            (
                chunk(choice({}), service_tier=tier),
                [UnknownFields(0, FieldLocation.CHUNK, {"service_tier": tier}), NOW],
                noted,
            )
            for tier, noted in (("gold", ["env-service-tier"]), (7, ["env-service-tier"]), ("default", []))
        ],
        (
            chunk(choice({}), role="assistant", x=1),
            [UnknownFields(0, FieldLocation.CHUNK, {"role": "assistant", "x": 1}), NOW],
            ["env-extra-fields"],
        ),
        (chunk(choice({}), obfuscation=7), [QUIET], ["env-obfuscation"]),
        # choices
        (chunk(7), [QUIET], ["delta-object-present"]),
        (
            chunk(choice({"content": "a"}), choice({"content": "b"}, None, 1)),
            [Text(0, "a"), Text(1, "b")],
            ["n-one-choice-per-chunk"],
        ),
        (say({"content": "a"}, GONE), [Text(0, "a")], ["n-index-int"]),
        (say({"content": "a"}, "2"), [Text(2, "a")], ["n-index-int"]),
        (say({"content": "a"}, -1), [Text(0, "a")], ["n-index-int"]),
        (say(GONE), [QUIET], ["delta-object-present"]),
        (say(None), [QUIET], ["delta-object-present"]),
        (say(None, text="a"), [Text(0, "a")], ["delta-object-present"]),
        (
            say(GONE, message={"role": "assistant", "content": "a"}),
            [OPEN, Text(0, "a")],
            ["delta-not-message", "delta-role-content-empty"],
        ),
        (say(None, message={"content": "a"}), [Text(0, "a")], ["delta-not-message"]),
        (say({"content": "a"}, message={"content": "a"}), [Text(0, "a")], ["delta-not-message"]),
        (say({"content": "a"}, text="a"), [UnknownFields(0, FieldLocation.CHOICE, {"text": "a"}), Text(0, "a")], []),
        (say({}, logprobs=[]), [QUIET], ["ext-logprobs-shape"]),
        # reasons
        (say({}, finish_reason=GONE), [QUIET], ["fin-key-present"]),
        (say({}, finish_reason=""), [QUIET], ["fin-null-not-empty"]),
        (say({}, finish_reason="null"), [QUIET], ["fin-null-not-string"]),
        (finish("eos"), [STOP], ["fin-closed-enum"]),
        (finish("MAX_TOKENS"), [Finish(0, "length")], ["fin-closed-enum"]),
        (finish([]), [QUIET], ["fin-closed-enum"]),
        (finish({}), [QUIET], ["fin-closed-enum"]),
        (finish(False), [QUIET], ["fin-closed-enum"]),
        (finish(float("nan")), [QUIET], ["fin-closed-enum"]),
        (finish("function_call"), [Finish(0, "tool_calls")], ["fin-function-call-legacy"]),
        (finish("FUNCTION_CALL"), [Finish(0, "tool_calls")], ["fin-closed-enum"]),
        (chunk(choice({"content": "a"}, "stop")), [Text(0, "a"), STOP], ["fin-own-chunk"]),
        (chunk(choice({"content": None}, "stop")), [STOP], ["delta-final-empty"]),
        (chunk(choice(GONE, "stop", message={"content": ""})), [STOP], ["delta-not-message"]),
        (
            chunk(choice({"x": 1}, "stop")),
            [UnknownFields(0, FieldLocation.DELTA, {"x": 1}), STOP],
            ["delta-final-empty"],
        ),
        # usage
        (chunk(choice({"content": "a"}), usage=count()), [Text(0, "a"), USAGE], ["use-null-elsewhere"]),
        (
            chunk(choice({"content": "a"}), usage=count(0, 0)),
            [Text(0, "a"), Usage(0, 0, 0, {})],
            ["use-null-elsewhere"],
        ),
        (counted(7), [], ["use-ints"]),
        (counted({}), [], ["use-ints"]),
        (counted(count() | {"prompt_tokens": -5}), [USAGE], ["use-ints"]),
        (counted(count(), choices=None), [USAGE], ["env-choices-array", "use-choices-empty-array"]),
        (counted(count(), model=GONE), [USAGE], ["env-metadata-on-usage-chunk", "env-model-string"]),
    ],
)
def test_an_odd_chunk_is_read_as_it_was_meant(given: Json, events: list[Event], noted: list[str]) -> None:
    read = Read(given)
    assert read.events == events
    assert read.rules == noted


@table(
    ("given", "events", "noted"),
    [
        (text(None), [QUIET], ["cmpl-text-string"]),
        (text(GONE), [QUIET], ["cmpl-text-string"]),
        (text(GONE, delta={"content": "a"}), [Text(0, "a")], ["cmpl-no-delta"]),
        (text("", delta={"content": "a"}), [Text(0, "a")], ["cmpl-no-delta"]),
        (text("a", delta={"content": "b"}), [Text(0, "a")], ["cmpl-no-delta"]),
        (text(GONE, message={"content": "a"}), [Text(0, "a")], ["cmpl-no-delta"]),
        (text(GONE, delta={}), [QUIET], ["cmpl-no-delta", "cmpl-text-string"]),
        (text("a", GONE), [Text(0, "a")], ["cmpl-index"]),
        (text("a", "3"), [Text(3, "a")], ["cmpl-index"]),
        (text("a", finish_reason=GONE), [Text(0, "a")], ["cmpl-finish"]),
        (text("a", finish_reason=""), [Text(0, "a")], ["cmpl-finish"]),
        (text("a", finish_reason="null"), [Text(0, "a")], ["cmpl-finish"]),
        (text_end([]), [QUIET], ["cmpl-finish"]),
        (text_end("eos"), [STOP], ["cmpl-finish"]),
        (text("a", logprobs={}), [Text(0, "a")], ["cmpl-logprobs"]),
        (text_chunk(text_choice("a"), object="x"), [Text(0, "a")], ["cmpl-object"]),
        # these are right
        (text(""), [QUIET], []),
        (text_chunk(text_choice("a", "stop")), [Text(0, "a"), STOP], []),
        (text_chunk(text_choice("a"), text_choice("b", None, 1)), [Text(0, "a"), Text(1, "b")], []),
        (text("", x=1), [UnknownFields(0, FieldLocation.CHOICE, {"x": 1}), NOW], []),
        (text("a", x=1), [UnknownFields(0, FieldLocation.CHOICE, {"x": 1}), Text(0, "a")], []),
    ],
)
def test_a_completions_chunk_is_read_as_it_was_meant(given: Json, events: list[Event], noted: list[str]) -> None:
    read = Read(given, endpoint=COMPLETIONS)
    assert read.events == events
    assert read.rules == noted


def test_offsets_count_from_the_start_of_the_choice() -> None:
    tokens = {"tokens": ["a"], "token_logprobs": [-1], "top_logprobs": [None]}
    read = Read(text("Hello"), text("b", 1), text("a", logprobs=tokens), endpoint=COMPLETIONS)
    assert read.events[2:] == [Logprobs(0, tokens | {"text_offset": [5]}), Text(0, "a")]


@table("reason", ["abort", "aborted", "cancelled", "ERROR", "network_error"])
def test_a_reason_that_is_an_error_is_a_failure(reason: str) -> None:
    message = f"the server ended the answer with finish_reason {reason!r}"
    failure = Failure(message, "upstream_error", None, "incomplete_stream")
    chat = Read(role(), finish(reason))
    assert (chat.failure, chat.rules) == (failure, ["fin-closed-enum"])
    completions = Read(text_end(reason), endpoint=COMPLETIONS)
    assert (completions.failure, completions.rules) == (failure, ["cmpl-finish"])


@pytest.mark.parametrize(("endpoint", "limit"), [(CHAT, 128), (COMPLETIONS, 4096)])
def test_a_choice_beyond_all_reason_is_a_failure(endpoint: Endpoint, limit: int) -> None:
    given = say if endpoint is CHAT else text
    said: object = {"content": "a"} if endpoint is CHAT else "a"
    assert Read(given(said, limit - 1), endpoint=endpoint).failure is None
    failure = Failure(f"the server sent a choice with the index {limit}", "upstream_error", None, "bad_upstream_stream")
    assert Read(given(said, limit), endpoint=endpoint).failure == failure


def test_the_envelope_is_that_of_the_first_chunk() -> None:
    read = Read(chunk(choice({}), id="", created="x", model=None), role())
    assert read.reader.envelope == FALLBACK
    assert read.rules == [
        "env-created-constant",
        "env-created-int",
        "env-id-constant",
        "env-id-present",
        "env-model-string",
    ]


def test_a_placeholder_chunk_gives_no_envelope() -> None:
    read = Read(chunk(id="", object="", created=0, model="", prompt_filter_results=[1]), role())
    assert read.events == [UnknownFields(0, FieldLocation.CHUNK, {"prompt_filter_results": [1]}), OPEN]
    assert read.reader.envelope == HEAD
    assert read.rules == ["env-placeholder-chunk"]


def test_the_envelope_is_clean() -> None:
    head = Read(chunk(choice({}), model="m\ud83d")).reader.envelope
    assert head is not None
    assert head.model == "m\ufffd"


def test_a_chunk_after_the_end_of_its_choice_is_noted() -> None:
    assert Read(role(), finish(), say({"content": "a"})).rules == ["fin-last-of-choice"]
    assert Read(role(), role(1), finish(), say({"content": "a"}, 1)).rules == []


def test_usage_with_an_empty_choice_behind_the_end_should_have_none() -> None:
    read = Read(role(), finish(), chunk(choice({}), usage=count()))
    assert read.events == [OPEN, STOP, USAGE]
    assert read.rules == ["fin-last-of-choice", "use-choices-empty-array"]


def test_usage_comes_last_and_once() -> None:
    assert Read(counted(count()), role()).rules == ["use-last"]
    twice = Read(counted(count()), counted(count(5, 4)))
    assert (twice.events, twice.rules) == ([USAGE, Usage(5, 4, 9, {})], ["use-last"])


def test_a_count_of_nothing_hides_no_real_one() -> None:
    read = Read(chunk(choice({"content": "a"}), usage=count()), counted(count(0, 0)))
    assert read.events == [Text(0, "a"), USAGE]


@pytest.mark.parametrize(
    ("asked", "noted"),
    [
        (RequestFacts(include_usage=False), ["use-only-if-asked"]),
        (RequestFacts(include_usage=True), ["use-null-elsewhere"]),
        (RequestFacts(), ["use-null-elsewhere"]),
    ],
)
def test_usage_beside_text_is_odd_in_one_way_or_another(asked: RequestFacts, noted: list[str]) -> None:
    assert Read(chunk(choice({"content": "a"}), usage=count()), asked=asked).rules == noted


def test_usage_on_each_chunk_is_carried_if_it_was_asked_for() -> None:
    asked = RequestFacts(include_usage=True, continuous_usage=True)
    read = Read(chunk(choice({"content": "a"}), usage=count(5, 1)), counted(count()), asked=asked)
    assert read.events == [
        UnknownFields(0, FieldLocation.CHUNK, {"usage": count(5, 1)}),
        Text(0, "a"),
        Usage(5, 1, 6, {}),
        USAGE,
    ]
    assert read.rules == []
    assert Read(chunk(choice({"content": "a"}), usage={}), asked=asked).events == [Text(0, "a")]
    assert Read(chunk(choice({"content": "a"}), usage=None), asked=asked).events == [Text(0, "a")]


@pytest.mark.parametrize("stops", [(), ("x",)])
def test_usage_on_each_chunk_is_made_of_llama_cpps_timings(stops: tuple[str, ...]) -> None:
    timings = {"cache_n": 1, "prompt_n": 2, "predicted_n": 4}
    read = Read(
        chunk(choice({"content": "a"}), timings=timings),
        asked=RequestFacts(include_usage=True, continuous_usage=True, stop_strings=stops),
    )
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    kept = {"timings": timings} if stops else {}  # what looks for stop strings counts by them
    assert read.events == [UnknownFields(0, FieldLocation.CHUNK, kept | {"usage": usage}), Text(0, "a")]


@pytest.mark.parametrize("is_asked", [False, True])
def test_counts_on_each_chunk_need_usage(is_asked: bool) -> None:
    options = {"include_usage": is_asked, "continuous_usage_stats": True}
    assert read_request_facts({"stream_options": options}).continuous_usage is is_asked


def test_padding_is_left_out_where_it_was_refused() -> None:
    read = Read(chunk(choice({"content": "a"}), obfuscation="xx"), asked=RequestFacts(allow_obfuscation=False))
    assert (read.events, read.rules) == ([Text(0, "a")], ["env-obfuscation"])


def test_a_function_call_is_right_where_functions_were_asked_for() -> None:
    read = Read(finish("function_call"), asked=RequestFacts(uses_legacy_functions=True))
    assert (read.events, read.rules) == ([Finish(0, "tool_calls")], [])


def test_halves_of_characters_are_joined_over_chunks() -> None:
    reader = ChunkReader(CHAT, fallback=FALLBACK, facts=RequestFacts(), repair_log=RepairLog())
    reader.expect_split_characters()
    events: list[Event] = []
    for one in (say({"content": "\ud83d"}), say({"content": "\ude00"}), say({"content": "\ud83d"}), finish()):
        reader.read(one, events)
    reader.read(say({"reasoning_content": "\ud83d"}, 1), events)
    assert events == [QUIET, Text(0, "😀"), QUIET, Text(0, "\ufffd"), STOP, QUIET]
    assert reader.close() == [Reasoning(1, "\ufffd")]
