"""Log probabilities in the shapes of chat and completions."""

from typing import Any

from tests.protocol.build import ABSENT, Json, RepairedStream, delta_chunk, entry, finish, role, rules, stream, top
from tests.table import table
from welldone.core.fields import (
    drop_leading_logprobs,
    limit_top_logprobs,
    read_chat_logprobs,
    read_completions_logprobs,
)
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RequestFacts

NAN, INFINITE = float("nan"), float("inf")
SHAPE, ENTRY, FINITE, LISTS = "ext-logprobs-shape", "ext-logprobs-entry", "ext-logprobs-finite", "cmpl-logprobs"


def chat(value: object) -> tuple[Any, list[str]]:
    repair_log = RepairLog()
    return read_chat_logprobs(value, repair_log), rules(repair_log)


def completions(value: object, offset: int = 0) -> tuple[Any, list[str]]:
    repair_log = RepairLog()
    return read_completions_logprobs(value, offset, repair_log), rules(repair_log)


def test_correct_chat_logprobs_stay_unchanged() -> None:
    right = {"content": [entry("é", -0.5, top("e"), top("a", 0))], "refusal": None}
    assert chat(right) == (right, [])
    assert chat({"content": None, "refusal": [entry("no")]}) == ({"content": None, "refusal": [entry("no")]}, [])


@table(
    ("value", "fixed"),
    [
        ({"content": [entry("a")]}, {"content": [entry("a")], "refusal": None}),
        ({"refusal": None}, {"content": None, "refusal": None}),
        ({"content": 7, "refusal": []}, {"content": None, "refusal": []}),
        ({}, {"content": None, "refusal": None}),
        ([], None),
        ("x", None),
        (7, None),
    ],
)
def test_chat_logprobs_have_two_lists(value: object, fixed: object) -> None:
    assert chat(value) == (fixed, [SHAPE])


def test_unknown_members_of_logprobs_stay() -> None:
    value = {"content": [entry("a", x=1)], "refusal": None, "y": [2]}
    assert chat(value) == (value, [])


@table(
    ("given", "fixed"),
    [
        (entry("é", bytes=ABSENT), [entry("é")]),
        (entry("é", bytes="é"), [entry("é")]),
        (entry("a", top_logprobs=ABSENT), [entry("a")]),
        (entry("a", top_logprobs=None), [entry("a")]),
        (entry("a", -0.5, {"token": "b", "logprob": -1}), [entry("a", -0.5, top("b", -1))]),
        (entry("a", -0.5, "b", {"token": 7}, top("c")), [entry("a", -0.5, top("c"))]),
        ("a", []),
        ({"logprob": -0.5}, []),
        ({"token": 7, "logprob": -0.5}, []),
    ],
)
def test_an_incomplete_entry_is_completed_or_dropped(given: object, fixed: list[object]) -> None:
    assert chat({"content": [given], "refusal": None}) == ({"content": fixed, "refusal": None}, [ENTRY])


def test_the_bytes_of_an_entry_may_be_null() -> None:
    value = {"content": [entry("a", bytes=None)], "refusal": None}
    assert chat(value) == (value, [])


@table("number", [NAN, INFINITE, -INFINITE, None, "x", True, 10**400, -(2**63)])
def test_a_log_probability_is_a_finite_number(number: object) -> None:
    given = {"content": [entry("a", number, top("b", number))], "refusal": None}
    fixed = {"content": [entry("a", -9999.0, top("b", -9999.0))], "refusal": None}
    assert chat(given) == (fixed, [FINITE])


def lists(*tokens: str, **members: object) -> dict[str, Any]:
    offsets = [len("".join(tokens[:position])) for position in range(len(tokens))]
    right = {
        "tokens": list(tokens),
        "token_logprobs": [-0.5 for _ in tokens],
        "top_logprobs": [{token: -0.5} for token in tokens],
        "text_offset": offsets,
    }
    return {key: value for key, value in (right | members).items() if value is not ABSENT}


def test_correct_completions_logprobs_stay_unchanged() -> None:
    assert completions(lists("Hel", "lo")) == (lists("Hel", "lo"), [])
    first_of_an_echo = lists("a", token_logprobs=[None], top_logprobs=[None], x=1)
    assert completions(first_of_an_echo) == (first_of_an_echo, [])


@table(
    ("members", "fixed"),
    [
        ({"token_logprobs": ABSENT}, {"token_logprobs": [None, None]}),
        ({"token_logprobs": [-1]}, {"token_logprobs": [None, None]}),
        ({"top_logprobs": None}, {"top_logprobs": [None, None]}),
        ({"top_logprobs": [{}]}, {"top_logprobs": [None, None]}),
        ({"text_offset": ABSENT}, {"text_offset": [7, 10]}),
        ({"text_offset": [0, 3, 5]}, {"text_offset": [7, 10]}),
    ],
)
def test_the_four_lists_get_equal_lengths(members: dict[str, Any], fixed: dict[str, Any]) -> None:
    assert completions(lists("Hel", "lo", **members), 7) == (lists("Hel", "lo", **fixed), [LISTS])


def test_completions_logprobs_are_finite() -> None:
    given = lists("a", "b", token_logprobs=[NAN, -1], top_logprobs=[{"a": -INFINITE}, 7])
    fixed = lists("a", "b", token_logprobs=[-9999.0, -1], top_logprobs=[{"a": -9999.0}, None])
    assert completions(given)[0] == fixed
    assert FINITE in completions(given)[1]


@table("value", [[], "x", {}, {"tokens": []}, {"tokens": "ab"}, {"tokens": ["a", 7]}, {"content": []}])
def test_values_that_are_not_logprobs_are_dropped(value: object) -> None:
    assert completions(value) == (None, [LISTS])


def test_chat_logprobs_are_converted_to_the_four_lists() -> None:
    given = {"content": [entry("Hel", -0.5, top("Hel"), top("He", -2)), entry("lo", -1, bytes=ABSENT)]}
    fixed = {
        "tokens": ["Hel", "lo"],
        "token_logprobs": [-0.5, -1],
        "top_logprobs": [{"Hel": -0.5, "He": -2}, {}],
        "text_offset": [7, 10],
    }
    assert completions(given, 7) == (fixed, [LISTS])


def test_alternatives_are_limited_to_the_requested_number() -> None:
    value = {"content": [entry("a", -0.5, top("a"), top("b"))], "refusal": None}
    assert limit_top_logprobs(value, 1)["content"][0]["top_logprobs"] == [top("a")]
    assert limit_top_logprobs(value, 0) == {"content": [entry("a", -0.5)], "refusal": None}
    lists = {"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0], "top_logprobs": [{"a": -1.0, "x": -3.0}, None]}
    assert limit_top_logprobs(lists, 1)["top_logprobs"] == [{"a": -1.0}, None]
    chosen = {**lists, "token_logprobs": [-1.0, None]}
    assert limit_top_logprobs(chosen, 0)["top_logprobs"] == [{"a": -1.0}, None]
    assert limit_top_logprobs({"tokens": ["a"], "top_logprobs": None}, 0)["top_logprobs"] == []


def test_unrequested_alternatives_are_not_sent() -> None:
    chunk_with_alternatives = delta_chunk(
        {"content": "a"}, logprobs={"content": [entry("a", -0.5, top("b"))], "refusal": None}
    )
    fixed = RepairedStream(stream(role(), chunk_with_alternatives, finish()), facts=RequestFacts(top_logprobs=0))
    assert b'"top_logprobs":[]' in fixed.body


@table(
    ("tokens", "text", "expected"),
    [
        (["{", "a"], "{a", ["{", "a"]),
        (["```", "json", "\n", "{", "a"], "{a", ["{", "a"]),
        ([" {"], "{", ["{"]),
        ([" é", "x"], "éx", ["é", "x"]),
        (["a"], "b", ["a"]),
        (["xa"], "b", ["xa"]),
        (["a"], "", []),
        ([], "a", []),
    ],
)
def test_logprobs_of_tokens_before_the_text_are_dropped(tokens: list[str], text: str, expected: list[str]) -> None:
    value = drop_leading_logprobs({"content": [entry(token) for token in tokens], "refusal": None}, text)
    assert value["content"] == [entry(token) for token in expected]
    assert drop_leading_logprobs({"content": None}, text) == {"content": None}


def test_logprobs_of_text_that_the_engine_stripped_are_dropped() -> None:
    def chunk(text: str, *tokens: str) -> Json:
        return delta_chunk({"content": text}, logprobs={"content": [entry(token) for token in tokens], "refusal": None})

    received = stream(role(), chunk("", "```"), chunk("{", " ", "{"), chunk("x", " ", "x"), finish())
    trimmed = RepairedStream(received, facts=RequestFacts(top_logprobs=0)).body
    untrimmed = RepairedStream(received, facts=RequestFacts()).body
    assert b"```" not in trimmed
    assert trimmed.count(b'"token":" "') == 1  # only the leading token is dropped
    assert b"```" in untrimmed
    assert untrimmed.count(b'"token":" "') == 2
