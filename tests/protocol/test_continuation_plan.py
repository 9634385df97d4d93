"""Which answers can go on, in which way, and the request for their rest."""

from typing import Any

import msgspec

from tests.protocol import build
from tests.protocol.continuations import HELLO, LOST, REPLAY, delivered_of, make, prefill
from tests.table import table
from welldone.core.continuation import (
    ContinuationWay,
    FastPathText,
    PrefillStyle,
    continued_body,
    continued_usage,
    may_repeat,
    plan_continuation,
    survives_failure,
)
from welldone.core.events import (
    ChoiceStart,
    Event,
    FieldLocation,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    UnknownFields,
    Usage,
)


@table(
    "body, expected",
    [
        ({"temperature": 0}, True),
        ({"temperature": 0.0}, True),
        ({"temperature": 0.1}, False),
        ({"temperature": False}, False),
        ({"seed": 3}, True),
        ({"seed": -1}, False),
        ({}, False),
    ],
)
def test_which_requests_are_repeatable(body: dict[str, Any], expected: bool) -> None:
    assert may_repeat(body, honours_seed=True) is expected
    assert may_repeat({"seed": 3}, honours_seed=False) is False


PREFILLS: list[tuple[dict[str, Any], PrefillStyle, str | None]] = [
    ({}, PrefillStyle.ENGINE, "Hello you"),
    ({}, PrefillStyle.MESSAGE, "Hello you"),
    ({"n": 1, "tool_choice": "auto", "response_format": {"type": "text"}}, PrefillStyle.FIELDS, "Hello you"),
    ({"n": 2}, PrefillStyle.ENGINE, None),
    ({"logprobs": True}, PrefillStyle.ENGINE, None),
    ({"logprobs": 0}, PrefillStyle.ENGINE, None),
    ({"logprobs": False}, PrefillStyle.ENGINE, "Hello you"),
    ({"grammar": "root ::= x"}, PrefillStyle.ENGINE, None),
    ({"response_format": {"type": "json_object"}}, PrefillStyle.ENGINE, None),
    ({"tool_choice": {"type": "function"}}, PrefillStyle.ENGINE, None),
    ({"frequency_penalty": 1}, PrefillStyle.ENGINE, "Hello you"),
    ({"frequency_penalty": 1}, PrefillStyle.MESSAGE, None),
    ({"stop": "you!"}, PrefillStyle.MESSAGE, "Hello "),
    ({"stop": ["o you!", 5, "u"]}, PrefillStyle.MESSAGE, "Hell"),
    ({"stop": "you!"}, PrefillStyle.ENGINE, "Hello you"),
]


@table("body, style, expected", PREFILLS)
def test_when_a_text_is_continued_by_prefill(body: dict[str, Any], style: PrefillStyle, expected: str | None) -> None:
    planned = plan_continuation(body, HELLO, LOST, style=style)
    assert (None if planned is None else planned.prefill) == expected
    if planned is not None:
        # The last piece is generated again if it was left out, so it counts as a part of the rest.
        tokens = 2 if expected == "Hello you" else 1
        assert (planned.way, planned.delivered_tokens) == (ContinuationWay.PREFILL, tokens)
        assert planned.is_guarded is (style is not PrefillStyle.ENGINE)


def test_a_prefill_counts_no_white_space_that_it_leaves_out() -> None:
    for texts, tokens in {("Hello", " you", "\n"): 2, ("Hello you\n",): 1, ("Hello", " you"): 2}.items():
        delivered = delivered_of(*(Text(0, text) for text in texts))
        planned = plan_continuation({}, delivered, LOST, style=PrefillStyle.FIELDS)
        assert planned is not None
        assert (planned.prefill, planned.delivered_tokens) == ("Hello you", tokens)


def test_a_role_alone_is_nothing_that_was_sent() -> None:
    pipeline = make()
    pipeline.feed(build.frame(build.role()))
    assert not pipeline.has_sent(0)
    pipeline.feed(build.frame(build.content_chunks("Hello")[0]))
    assert pipeline.has_sent(0)


def test_a_short_replay_at_the_engine_comes_before_a_prefill() -> None:
    def way(**arguments: Any) -> str:  # noqa: ANN401 - any argument
        planned = plan_continuation({"temperature": 0}, HELLO, LOST, **{"style": PrefillStyle.ENGINE, **arguments})
        assert planned is not None
        return f"{planned.way} {planned.can_fall_back}"

    assert way(is_replay_short=True) == "replay True"
    assert way() == "prefill False"
    assert way(is_replay_short=True, has_differed=True) == "prefill False"
    assert way(is_replay_short=True, style=PrefillStyle.FIELDS) == "prefill False"
    assert way(style=None) == "replay False"
    assert plan_continuation({"temperature": 0}, HELLO, LOST, style=None, has_differed=True) is None


NOT_TEXT: dict[str, tuple[Event, ...]] = {
    "nothing after white space": (ChoiceStart(0), Text(0, " ")),
    "reasoning": (Reasoning(0, "Hm"), Text(0, "Hello")),
    "only reasoning": (Reasoning(0, "Hm"),),
    "a refusal": (Refusal(0, "No"),),
    "a call": (Text(0, "Hello"), ToolCall(0, 0, "c", "f")),
    "two choices": (Text(0, "Hello"), Text(1, "Hello")),
    "a special token": (Text(0, "Hello<|im_end|>"),),
}


@table("events", NOT_TEXT.values(), ids=NOT_TEXT.keys())
def test_other_content_is_continued_by_a_replay_only(events: tuple[Event, ...]) -> None:
    delivered = delivered_of(*events)
    assert plan_continuation({}, delivered, LOST, style=PrefillStyle.FIELDS) is None
    assert plan_continuation({"temperature": 0}, delivered, LOST, style=PrefillStyle.FIELDS) == REPLAY


ANSWERS = [HELLO, delivered_of(), *(delivered_of(*events) for events in NOT_TEXT.values())]
REQUESTS: list[dict[str, Any]] = [
    *(body for body, style, _ in PREFILLS if style is PrefillStyle.ENGINE),
    *({"temperature": 0}, {"return_token_ids": True}, {"prompt": [1, 2], "messages": None}),
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
]


@table("body", REQUESTS)
def test_an_answer_survives_a_failure_if_a_prefill_continues_it(body: dict[str, Any]) -> None:
    request = {name: value for name, value in {"messages": [{}], **body}.items() if value is not None}
    for delivered in ANSWERS:
        longer = delivered if delivered.has_content else HELLO  # text may follow at any time
        planned = plan_continuation(request, longer, LOST, style=PrefillStyle.ENGINE)
        continues = (
            planned is not None
            and planned.way is ContinuationWay.PREFILL
            and continued_body(request, planned, PrefillStyle.ENGINE) is not None
        )
        has_special_token = longer is not HELLO and "<|" in (longer.choices[0].text or "")
        survives = survives_failure(request, delivered, PrefillStyle.ENGINE)
        assert survives is (continues and not has_special_token)
    assert not survives_failure(request, HELLO, None)


def test_what_cannot_be_compared_is_not_continued() -> None:
    unknown = UnknownFields(0, FieldLocation.DELTA, {"images": ["x"]})
    assert plan_continuation({"temperature": 0}, delivered_of(Text(0, "a"), unknown), LOST, style=None) is None
    empty = UnknownFields(0, FieldLocation.DELTA, {"images": None})
    assert plan_continuation({"temperature": 0}, delivered_of(Text(0, "a"), empty), LOST, style=None) == REPLAY
    assert plan_continuation({"temperature": 0, "return_token_ids": True}, HELLO, LOST, style=None) is None
    dropped = delivered_of(unknown, Text(0, "a"))
    dropped.pending.append(FastPathText(Text, 0, bytearray(b"a"), 1))
    dropped.record_pending()
    assert (dropped.choices, dropped.has_content) == ({}, True)


def test_a_role_alone_is_requested_again() -> None:
    assert plan_continuation({}, delivered_of(ChoiceStart(0)), LOST, style=None) == REPLAY


USER = {"role": "user", "content": "Hi"}
ADDED = {"role": "assistant", "content": "Hello"}


@table(
    "body, style, expected",
    [
        ({"messages": [USER], "max_tokens": 10}, PrefillStyle.MESSAGE, {"messages": [USER, ADDED], "max_tokens": 8}),
        ({"messages": [USER], "max_tokens": 2}, PrefillStyle.MESSAGE, None),
        (
            {"messages": [USER], "max_tokens": -1, "min_tokens": 1},
            PrefillStyle.ENGINE,
            {"messages": [USER, ADDED], "max_tokens": -1, "min_tokens": 0},
        ),
        (
            {"messages": [USER]},
            PrefillStyle.FIELDS,
            {"messages": [USER, ADDED], "continue_final_message": True, "add_generation_prompt": False},
        ),
        ({"messages": [USER], "add_generation_prompt": False}, PrefillStyle.FIELDS, None),
        (
            {"messages": [USER, {"role": "assistant", "content": "Oh "}]},
            PrefillStyle.ENGINE,
            {"messages": [USER, {"role": "assistant", "content": "Oh Hello"}]},
        ),
        ({"messages": [USER, {"role": "assistant", "content": []}]}, PrefillStyle.ENGINE, None),
        ({"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [{}]}]}, PrefillStyle.ENGINE, None),
        (
            {"messages": [{"role": "assistant", "content": "Oh"}]},
            PrefillStyle.FIELDS,
            {
                "messages": [{"role": "assistant", "content": "Oh"}, ADDED],
                "continue_final_message": True,
                "add_generation_prompt": False,
            },
        ),
        ({"prompt": "Say: "}, PrefillStyle.ENGINE, {"prompt": "Say: Hello"}),
        ({"prompt": [1, 2]}, PrefillStyle.ENGINE, None),
    ],
)
def test_the_request_for_the_rest(body: dict[str, Any], style: PrefillStyle, expected: dict[str, Any] | None) -> None:
    assert continued_body(body, prefill("Hello", tokens=2), style) == expected
    assert continued_body(body, REPLAY, style) == body


def test_usage_counts_the_prompt_once() -> None:
    usage = Usage(12, 3, 15, {"prompt_tokens_details": {"cached_tokens": 11}})
    assert continued_usage(usage, REPLAY) == usage
    expected = Usage(10, 5, 15, {"prompt_tokens_details": {"cached_tokens": 10}})
    assert continued_usage(usage, prefill("Hello", tokens=2)) == expected
    known = msgspec.structs.replace(prefill("Hello", tokens=1), prompt_tokens=11)
    assert continued_usage(usage, known) == Usage(11, 4, 15, usage.extra_fields)
    merged = msgspec.structs.replace(prefill("\nHello", tokens=2), prompt_tokens=11)  # a token of both
    assert continued_usage(usage, merged) == Usage(11, 5, 16, usage.extra_fields)


def test_the_prompt_tokens_of_the_first_stream_are_kept() -> None:
    pipeline = make()
    early = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
    pipeline.feed(build.stream(build.role(), build.chunk(build.choice({"content": "Hello"}), usage=early), end=b""))
    usage = {"prompt_tokens": 14, "completion_tokens": 2, "total_tokens": 16}
    rest = build.stream(build.role(), *build.content_chunks(" you"), build.finish(), build.usage_chunk(usage))
    pipeline.continue_part(0, prefill("Hello", tokens=1))
    pipeline.continue_part(0, prefill("Hello", tokens=1))  # an attempt failed before its first byte
    pipeline.feed(rest)
    pipeline.close()
    assert pipeline.usage == Usage(10, 6, 16, {})
