"""The envelope of a stream."""

from typing import Any

from tests.protocol.build import CHAT, COMPLETIONS, FALLBACK, GONE, HEAD, chunk, rules, text_chunk
from tests.table import table
from welldone.protocol.envelope import Endpoint, Envelope, check_envelope, read_envelope
from welldone.protocol.repair_log import RepairLog


def test_a_right_envelope_is_taken_as_it_is() -> None:
    assert read_envelope(chunk(system_fingerprint="fp"), CHAT, FALLBACK) == Envelope(
        "chatcmpl-1", 1700000000, "m", "fp"
    )
    assert read_envelope(text_chunk(), COMPLETIONS, FALLBACK) == Envelope("cmpl-1", 1700000000, "m")


def test_what_is_missing_comes_from_the_fallback() -> None:
    assert read_envelope({}, CHAT, FALLBACK) == FALLBACK
    wrong = {"id": None, "created": None, "model": "", "system_fingerprint": 7}
    assert read_envelope(wrong, CHAT, FALLBACK) == FALLBACK


@table(
    ("id", "chat", "completions"),
    [
        ("x", "x", "cmpl-x"),
        (7, "7", "cmpl-7"),
        ("cmpl-x", "cmpl-x", "cmpl-x"),
        ("chatcmpl-x", "chatcmpl-x", "cmpl-x"),
        ("", FALLBACK.id, FALLBACK.id),
        (True, FALLBACK.id, FALLBACK.id),
        ([], FALLBACK.id, FALLBACK.id),
    ],
)
def test_an_id_is_a_string_and_says_its_endpoint(id: object, chat: str, completions: str) -> None:
    assert read_envelope({"id": id}, CHAT, FALLBACK).id == chat
    assert read_envelope({"id": id}, COMPLETIONS, FALLBACK).id == completions


@table(
    ("created", "seconds"),
    [
        (1700000000, 1700000000),
        (0, 0),
        (1700000000.9, 1700000000),
        ("1700000000", 1700000000),
        (1700000000123, 1700000000),
        ("1700000000123", 1700000000),
        (1700000000123456, 1700000000),
        ("1700000000123456", 1700000000),
        (-1, FALLBACK.created),
        (True, FALLBACK.created),
        ("now", FALLBACK.created),
        ("1" * 5000, FALLBACK.created),
        (float("nan"), FALLBACK.created),
        (float("inf"), FALLBACK.created),
        (10**30, FALLBACK.created),
        (None, FALLBACK.created),
    ],
)
def test_created_is_a_count_of_seconds(created: object, seconds: int) -> None:
    assert read_envelope({"created": created}, CHAT, FALLBACK).created == seconds


@table(
    ("members", "noted"),
    [
        ({}, []),
        ({"object": "chat.completion"}, ["env-object-const"]),
        ({"object": GONE}, ["env-object-const"]),
        ({"id": GONE}, ["env-id-present"]),
        ({"id": ""}, ["env-id-present"]),
        ({"id": 7}, ["env-id-present"]),
        ({"id": "other"}, ["env-id-constant"]),
        ({"created": GONE}, ["env-created-int"]),
        ({"created": "1700000000"}, ["env-created-int"]),
        ({"created": 1700000000.0}, ["env-created-int"]),
        ({"created": 1700000000123}, ["env-created-int"]),
        ({"created": -1}, ["env-created-int"]),
        ({"created": True}, ["env-created-int"]),
        ({"created": 1700000001}, ["env-created-constant"]),
        ({"model": GONE}, ["env-model-string"]),
        ({"model": ""}, ["env-model-string"]),
        ({"model": 7}, ["env-model-string"]),
        ({"system_fingerprint": "fp"}, ["env-fingerprint"]),
        ({"system_fingerprint": None}, []),
    ],
)
def test_an_odd_chat_envelope_is_noted(members: dict[str, Any], noted: list[str]) -> None:
    assert noted_on(chunk(**members), CHAT, HEAD) == noted


@table(
    ("members", "noted"),
    [
        ({}, []),
        ({"object": "text_completion.chunk"}, ["cmpl-object"]),
        ({"object": GONE}, ["cmpl-object"]),
        ({"id": "cmpl-2"}, ["cmpl-id-constant"]),
        ({"id": GONE}, ["cmpl-id-constant"]),
        ({"created": GONE, "model": GONE, "system_fingerprint": "fp"}, []),
    ],
)
def test_an_odd_completions_envelope_is_noted(members: dict[str, Any], noted: list[str]) -> None:
    assert noted_on(text_chunk(**members), COMPLETIONS, Envelope("cmpl-1", 1700000000, "m")) == noted


def test_a_fingerprint_that_is_left_out_is_noted() -> None:
    assert noted_on(chunk(), CHAT, Envelope("chatcmpl-1", 1700000000, "m", "fp")) == ["env-fingerprint"]


def noted_on(value: dict[str, Any], endpoint: Endpoint, head: Envelope) -> list[str]:
    notes = RepairLog()
    check_envelope(value, head, endpoint, notes)
    return rules(notes)
