"""Reader of chunks."""

import pytest

from tests.protocol.build import (
    ABSENT,
    CHAT,
    COMPLETIONS,
    ENVELOPE,
    FALLBACK,
    choice,
    chunk,
    content_chunks,
    count,
    delta_chunk,
    entry,
    finish,
    role,
    rules,
    text,
    text_choice,
    text_chunk,
    text_end,
    usage_chunk,
)
from tests.table import table
from welldone.core.envelope import Endpoint
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
    Text,
    UnknownFields,
    Usage,
)
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RequestFacts, read_request_facts
from welldone.dialects.chat.chunks import ChunkReader

OPEN, HELLO, STOP = ChoiceStart(0), Text(0, "Hello"), Finish(0, "stop")
QUIET = KeepAlive(is_chunk=True)
USAGE = Usage(5, 3, 8, {})
LOGPROBS = {"content": [entry("a")], "refusal": None}

UNREADABLE = UnknownFields(0, FieldLocation.CHUNK, {"unreadable_usage": 7}, in_own_chunk=True)
NOW = UnknownFields(0, FieldLocation.CHOICE, {}, in_own_chunk=True)


class Read:
    """Result of reading chunks up to a failure."""

    def __init__(self, *chunks: Json, endpoint: Endpoint = CHAT, facts: RequestFacts | None = None) -> None:
        repair_log = RepairLog()
        self.reader = ChunkReader(endpoint, fallback=FALLBACK, facts=facts or RequestFacts(), repair_log=repair_log)
        self.events: list[Event] = []
        self.failure: Failure | None = None
        for one in chunks:
            self.failure = self.failure or self.reader.read(one, self.events)
        self.rules = rules(repair_log)


def test_correct_chat_chunks_are_read_without_a_repair() -> None:
    read = Read(role(), *content_chunks("Hel", "lo"), finish(), usage_chunk(count()))
    assert read.events == [OPEN, Text(0, "Hel"), Text(0, "lo"), STOP, USAGE]
    assert read.rules == []
    assert read.reader.envelope == ENVELOPE
    assert read.reader.has_usage_chunk is True


def test_correct_completions_chunks_are_read_without_a_repair() -> None:
    read = Read(text("Hel"), text("lo"), text("b", 1), text_end(), text_end("length", 1), endpoint=COMPLETIONS)
    assert read.events == [Text(0, "Hel"), Text(0, "lo"), Text(1, "b"), STOP, Finish(1, "length")]
    assert read.rules == []


@table(
    ("given", "events"),
    [
        (delta_chunk({}), [QUIET]),
        (delta_chunk({"content": ""}), [QUIET]),
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
        (delta_chunk({}, x=1), [UnknownFields(0, FieldLocation.CHOICE, {"x": 1}), NOW]),
        (delta_chunk({"content": "a"}, x=1), [UnknownFields(0, FieldLocation.CHOICE, {"x": 1}), Text(0, "a")]),
        (delta_chunk({"x": 1}), [UnknownFields(0, FieldLocation.DELTA, {"x": 1}), NOW]),
        (
            delta_chunk({"x": 1}, y=2),
            [UnknownFields(0, FieldLocation.CHOICE, {"y": 2}), UnknownFields(0, FieldLocation.DELTA, {"x": 1}), NOW],
        ),
        (delta_chunk({}, logprobs=LOGPROBS), [Logprobs(0, LOGPROBS), NOW]),
        (delta_chunk({"content": "a"}, logprobs=LOGPROBS), [Logprobs(0, LOGPROBS), Text(0, "a")]),
        (
            delta_chunk({"content": "a", "reasoning_content": "b"}, logprobs=LOGPROBS),
            [Reasoning(0, "b"), Logprobs(0, LOGPROBS), Text(0, "a")],
        ),
        (delta_chunk({"content": "a"}, logprobs=ABSENT), [Text(0, "a")]),
    ],
)
def test_logprobs_and_unknown_fields_become_events(given: Json, events: list[Event]) -> None:
    read = Read(given)
    assert read.events == events
    assert read.rules == []


@table(
    ("given", "events", "recorded"),
    [
        # envelope
        (chunk(choice({"content": "a"}), id=""), [Text(0, "a")], ["env-id-present"]),
        (chunk(choices=None), [], ["env-choices-array"]),
        (chunk(choices=ABSENT), [], ["env-choices-array"]),
        (chunk(id="", object=""), [], ["env-placeholder-chunk"]),
        (chunk(), [], ["env-placeholder-chunk"]),
        (chunk(usage=None, service_tier=None), [], ["env-placeholder-chunk"]),
        *[
            (
                chunk(choice({}), service_tier=tier),
                [UnknownFields(0, FieldLocation.CHUNK, {"service_tier": tier}), NOW],
                recorded,
            )
            for tier, recorded in (("gold", ["env-service-tier"]), (7, ["env-service-tier"]), ("default", []))
        ],
        (
            chunk(choice({}), role="assistant", x=1),
            [UnknownFields(0, FieldLocation.CHUNK, {"role": "assistant", "x": 1}), NOW],
            ["env-extra-fields"],
        ),
        (chunk(choice({}), obfuscation=[]), [QUIET], ["env-obfuscation"]),
        # choices
        (chunk(None), [QUIET], ["delta-object-present"]),
        (
            chunk(choice({"content": "a"}), choice({"content": "b"}, None, 1)),
            [Text(0, "a"), Text(1, "b")],
            ["n-one-choice-per-chunk"],
        ),
        (delta_chunk({"content": "a"}, ABSENT), [Text(0, "a")], ["n-index-int"]),
        (delta_chunk({"content": "a"}, "2"), [Text(2, "a")], ["n-index-int"]),
        (delta_chunk({"content": "a"}, -1), [Text(0, "a")], ["n-index-int"]),
        (delta_chunk(ABSENT), [QUIET], ["delta-object-present"]),
        (delta_chunk(None), [QUIET], ["delta-object-present"]),
        (delta_chunk(None, text="a"), [Text(0, "a")], ["delta-object-present"]),
        (
            delta_chunk(ABSENT, message={"role": "assistant", "content": "a"}),
            [OPEN, Text(0, "a")],
            ["delta-not-message", "delta-role-content-empty"],
        ),
        (delta_chunk(None, message={"content": "a"}), [Text(0, "a")], ["delta-not-message"]),
        (delta_chunk({"content": "a"}, message={"content": "a"}), [Text(0, "a")], ["delta-not-message"]),
        (
            delta_chunk({"content": "a"}, text="a"),
            [UnknownFields(0, FieldLocation.CHOICE, {"text": "a"}), Text(0, "a")],
            [],
        ),
        (delta_chunk({}, logprobs=[]), [QUIET], ["ext-logprobs-shape"]),
        # finish reasons
        (delta_chunk({}, finish_reason=ABSENT), [QUIET], ["fin-key-present"]),
        (delta_chunk({}, finish_reason=""), [QUIET], ["fin-null-not-empty"]),
        (delta_chunk({}, finish_reason="null"), [QUIET], ["fin-null-not-string"]),
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
        (chunk(choice(ABSENT, "stop", message={"content": ""})), [STOP], ["delta-not-message"]),
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
        (usage_chunk(7), [UNREADABLE], ["use-ints"]),
        (usage_chunk({}), [], ["use-ints"]),
        (usage_chunk(count() | {"prompt_tokens": -5}), [USAGE], ["use-ints"]),
        (usage_chunk(count(), choices=None), [USAGE], ["env-choices-array", "use-choices-empty-array"]),
        (usage_chunk(count(), model=ABSENT), [USAGE], ["env-metadata-on-usage-chunk", "env-model-string"]),
    ],
)
def test_a_malformed_chat_chunk_is_repaired_and_recorded(given: Json, events: list[Event], recorded: list[str]) -> None:
    read = Read(given)
    assert read.events == events
    assert read.rules == recorded


@table(
    ("given", "events", "recorded"),
    [
        (text(None), [QUIET], ["cmpl-text-string"]),
        (text(ABSENT), [QUIET], ["cmpl-text-string"]),
        (text(ABSENT, delta={"content": "a"}), [Text(0, "a")], ["cmpl-no-delta"]),
        (text("", delta={"content": "a"}), [Text(0, "a")], ["cmpl-no-delta"]),
        (text("a", delta={"content": "a"}), [Text(0, "a")], ["cmpl-no-delta"]),
        (text(ABSENT, message={"content": "a"}), [Text(0, "a")], ["cmpl-no-delta"]),
        (text(ABSENT, delta={}), [QUIET], ["cmpl-no-delta", "cmpl-text-string"]),
        (text("a", ABSENT), [Text(0, "a")], ["cmpl-index"]),
        (text("a", "3"), [Text(3, "a")], ["cmpl-index"]),
        (text("a", finish_reason=ABSENT), [Text(0, "a")], ["cmpl-finish"]),
        (text("a", finish_reason=""), [Text(0, "a")], ["cmpl-finish"]),
        (text("a", finish_reason="null"), [Text(0, "a")], ["cmpl-finish"]),
        (text_end([]), [QUIET], ["cmpl-finish"]),
        (text_end("eos"), [STOP], ["cmpl-finish"]),
        (text("a", logprobs={}), [Text(0, "a")], ["cmpl-logprobs"]),
        (text_chunk(text_choice("a"), object="x"), [Text(0, "a")], ["cmpl-object"]),
        # correct chunks
        (text(""), [QUIET], []),
        (text_chunk(text_choice("a", "stop")), [Text(0, "a"), STOP], []),
        (text_chunk(text_choice("a"), text_choice("b", None, 1)), [Text(0, "a"), Text(1, "b")], []),
        (text("", x=1), [UnknownFields(0, FieldLocation.CHOICE, {"x": 1}), NOW], []),
        (text("a", x=1), [UnknownFields(0, FieldLocation.CHOICE, {"x": 1}), Text(0, "a")], []),
    ],
)
def test_a_malformed_completions_chunk_is_repaired_and_recorded(
    given: Json, events: list[Event], recorded: list[str]
) -> None:
    read = Read(given, endpoint=COMPLETIONS)
    assert read.events == events
    assert read.rules == recorded


def test_text_offsets_count_from_the_start_of_the_choice() -> None:
    tokens = {"tokens": ["a"], "token_logprobs": [-1], "top_logprobs": [None]}
    read = Read(text("Hello"), text("b", 1), text("a", logprobs=tokens), endpoint=COMPLETIONS)
    assert read.events[2:] == [Logprobs(0, tokens | {"text_offset": [5]}), Text(0, "a")]


@table("reason", ["abort", "aborted", "cancelled", "ERROR", "network_error"])
def test_a_finish_reason_that_reports_an_error_is_a_failure(reason: str) -> None:
    message = f"the server ended the answer with finish_reason {reason!r}"
    failure = Failure(message, "upstream_error", None, "incomplete_stream")
    chat = Read(role(), finish(reason))
    assert (chat.failure, chat.rules) == (failure, ["fin-closed-enum"])
    completions = Read(text_end(reason), endpoint=COMPLETIONS)
    assert (completions.failure, completions.rules) == (failure, ["cmpl-finish"])


@pytest.mark.parametrize(("endpoint", "limit"), [(CHAT, 128), (COMPLETIONS, 4096)])
def test_a_choice_index_beyond_the_limit_is_a_failure(endpoint: Endpoint, limit: int) -> None:
    given = delta_chunk if endpoint is CHAT else text
    content: object = {"content": "a"} if endpoint is CHAT else "a"
    assert Read(given(content, limit - 1), endpoint=endpoint).failure is None
    failure = Failure(f"the server sent a choice with the index {limit}", "upstream_error", None, "bad_upstream_stream")
    assert Read(given(content, limit), endpoint=endpoint).failure == failure


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


def test_a_placeholder_chunk_has_no_envelope() -> None:
    read = Read(chunk(id="", object="", created=0, model="", prompt_filter_results=[1]), role())
    assert read.events == [UnknownFields(0, FieldLocation.CHUNK, {"prompt_filter_results": [1]}), OPEN]
    assert read.reader.envelope == ENVELOPE
    assert read.rules == ["env-placeholder-chunk"]


def test_the_envelope_has_no_lone_surrogates() -> None:
    envelope = Read(chunk(choice({}), model="m\ud83d")).reader.envelope
    assert envelope is not None
    assert envelope.model == "m\ufffd"


def test_a_chunk_after_the_finish_of_its_choice_is_recorded() -> None:
    assert Read(role(), finish(), delta_chunk({"content": "a"})).rules == ["fin-last-of-choice"]
    assert Read(role(), role(1), finish(), delta_chunk({"content": "a"}, 1)).rules == []


def test_usage_with_an_empty_choice_after_the_finish_is_recorded() -> None:
    read = Read(role(), finish(), chunk(choice({}), usage=count()))
    assert read.events == [OPEN, STOP, USAGE]
    assert read.rules == ["fin-last-of-choice", "use-choices-empty-array"]


def test_usage_that_is_repeated_or_not_last_is_recorded() -> None:
    assert Read(usage_chunk(count()), role()).rules == ["use-last"]
    twice = Read(usage_chunk(count()), usage_chunk(count(5, 4)))
    assert (twice.events, twice.rules) == ([USAGE, Usage(5, 4, 9, {})], ["use-last"])


def test_a_placeholder_usage_does_not_replace_a_real_one() -> None:
    read = Read(chunk(choice({"content": "a"}), usage=count()), usage_chunk(count(0, 0)))
    assert read.events == [Text(0, "a"), USAGE]


@pytest.mark.parametrize(
    ("facts", "recorded"),
    [
        (RequestFacts(include_usage=False), ["use-only-if-asked"]),
        (RequestFacts(include_usage=True), ["use-null-elsewhere"]),
        (RequestFacts(), ["use-null-elsewhere"]),
    ],
)
def test_usage_next_to_text_is_recorded(facts: RequestFacts, recorded: list[str]) -> None:
    assert Read(chunk(choice({"content": "a"}), usage=count()), facts=facts).rules == recorded


def test_continuous_usage_is_forwarded_if_requested() -> None:
    facts = RequestFacts(include_usage=True, continuous_usage=True)
    read = Read(chunk(choice({"content": "a"}), usage=count(5, 1)), usage_chunk(count()), facts=facts)
    assert read.events == [
        UnknownFields(0, FieldLocation.CHUNK, {"usage": count(5, 1)}),
        Text(0, "a"),
        Usage(5, 1, 6, {}),
        USAGE,
    ]
    assert read.rules == []
    assert Read(chunk(choice({"content": "a"}), usage={}), facts=facts).events == [Text(0, "a")]
    assert Read(chunk(choice({"content": "a"}), usage=None), facts=facts).events == [Text(0, "a")]


@pytest.mark.parametrize("stops", [(), ("x",)])
def test_continuous_usage_is_computed_from_llama_cpp_s_timings(stops: tuple[str, ...]) -> None:
    timings = {"cache_n": 1, "prompt_n": 2, "predicted_n": 4}
    read = Read(
        chunk(choice({"content": "a"}), timings=timings),
        facts=RequestFacts(include_usage=True, continuous_usage=True, stop_strings=stops),
    )
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    expected_fields = {"timings": timings} if stops else {}  # the stop string filter needs them
    assert read.events == [UnknownFields(0, FieldLocation.CHUNK, expected_fields | {"usage": usage}), Text(0, "a")]


@pytest.mark.parametrize("is_asked", [False, True])
def test_continuous_usage_needs_include_usage(is_asked: bool) -> None:
    options = {"include_usage": is_asked, "continuous_usage_stats": True}
    assert read_request_facts({"stream_options": options}).continuous_usage is is_asked


def test_obfuscation_is_dropped_if_the_request_turned_it_off() -> None:
    read = Read(chunk(choice({"content": "a"}), obfuscation="xx"), facts=RequestFacts(allow_obfuscation=False))
    assert (read.events, read.rules) == ([Text(0, "a")], ["env-obfuscation"])


def test_a_function_call_is_correct_if_the_request_has_functions() -> None:
    read = Read(finish("function_call"), facts=RequestFacts(uses_legacy_functions=True))
    assert (read.events, read.rules) == ([Finish(0, "tool_calls")], [])


def test_split_characters_are_joined_over_chunks() -> None:
    reader = ChunkReader(CHAT, fallback=FALLBACK, facts=RequestFacts(), repair_log=RepairLog())
    reader.deltas.expect_split_characters()
    events: list[Event] = []
    for one in (
        delta_chunk({"content": "\ud83d"}),
        delta_chunk({"content": "\ude00"}),
        delta_chunk({"content": "\ud83d"}),
        finish(),
    ):
        reader.read(one, events)
    reader.read(delta_chunk({"reasoning_content": "\ud83d"}, 1), events)
    assert events == [QUIET, Text(0, "😀"), QUIET, Text(0, "\ufffd"), STOP, QUIET]
    assert reader.deltas.close() == [Reasoning(1, "\ufffd")]
