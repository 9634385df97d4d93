"""Envelope of a stream."""

import re
from typing import Any

import pytest

from tests.protocol.build import (
    ABSENT,
    CHAT,
    COMPLETIONS,
    ENVELOPE,
    FALLBACK,
    chunk,
    content_chunks,
    finish,
    role,
    rules,
    stream,
    text_chunk,
)
from tests.table import table
from welldone.core.envelope import Endpoint, Envelope, check_envelope, read_envelope
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RepairOptions
from welldone.stream.pipeline import StreamPipeline


def test_a_correct_envelope_is_read_unchanged() -> None:
    assert read_envelope(chunk(system_fingerprint="fp"), CHAT, FALLBACK) == Envelope(
        "chatcmpl-1", 1700000000, "m", "fp"
    )
    assert read_envelope(text_chunk(), COMPLETIONS, FALLBACK) == Envelope("cmpl-1", 1700000000, "m")


def test_missing_envelope_fields_come_from_the_fallback() -> None:
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
def test_an_id_is_a_string_with_the_prefix_of_its_endpoint(id: object, chat: str, completions: str) -> None:
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
def test_created_is_converted_to_seconds(created: object, seconds: int) -> None:
    assert read_envelope({"created": created}, CHAT, FALLBACK).created == seconds


@table(
    ("members", "recorded"),
    [
        ({}, []),
        ({"object": "chat.completion"}, ["env-object-const"]),
        ({"object": ABSENT}, ["env-object-const"]),
        ({"id": ABSENT}, ["env-id-present"]),
        ({"id": ""}, ["env-id-present"]),
        ({"id": 7}, ["env-id-present"]),
        ({"id": "other"}, ["env-id-constant"]),
        ({"created": ABSENT}, ["env-created-int"]),
        ({"created": "1700000000"}, ["env-created-int"]),
        ({"created": 1700000000.0}, ["env-created-int"]),
        ({"created": 1700000000123}, ["env-created-int"]),
        ({"created": -1}, ["env-created-int"]),
        ({"created": True}, ["env-created-int"]),
        ({"created": 1700000001}, ["env-created-constant"]),
        ({"model": ABSENT}, ["env-model-string"]),
        ({"model": ""}, ["env-model-string"]),
        ({"model": 7}, ["env-model-string"]),
        ({"system_fingerprint": "fp"}, ["env-fingerprint"]),
        ({"system_fingerprint": None}, []),
    ],
)
def test_a_malformed_chat_envelope_is_recorded(members: dict[str, Any], recorded: list[str]) -> None:
    assert recorded_for(chunk(**members), CHAT, ENVELOPE) == recorded


@table(
    ("members", "recorded"),
    [
        ({}, []),
        ({"object": "text_completion.chunk"}, ["cmpl-object"]),
        ({"object": ABSENT}, ["cmpl-object"]),
        ({"id": "cmpl-2"}, ["cmpl-id-constant"]),
        ({"id": ABSENT}, ["cmpl-id-constant"]),
        (
            {"created": ABSENT, "model": ABSENT, "system_fingerprint": "fp"},
            ["env-created-int", "env-model-string"],
        ),
    ],
)
def test_a_malformed_completions_envelope_is_recorded(members: dict[str, Any], recorded: list[str]) -> None:
    assert recorded_for(text_chunk(**members), COMPLETIONS, Envelope("cmpl-1", 1700000000, "m")) == recorded


def test_a_missing_fingerprint_is_recorded() -> None:
    assert recorded_for(chunk(), CHAT, Envelope("chatcmpl-1", 1700000000, "m", "fp")) == ["env-fingerprint"]


def recorded_for(value: dict[str, Any], endpoint: Endpoint, envelope: Envelope) -> list[str]:
    repair_log = RepairLog()
    check_envelope(value, envelope, endpoint, repair_log)
    return rules(repair_log)


@pytest.mark.parametrize(("sent", "expected"), [("b0-unknown", "b11549"), ("b9000-abc", "b9000-abc")])
def test_an_engine_that_does_not_know_its_build_gets_that_of_the_options(sent: str, expected: str) -> None:
    pipeline = StreamPipeline(Endpoint.CHAT, fallback=FALLBACK)
    pipeline.configure(0, RepairOptions(fingerprint="b11549"))
    chunks = [role(), *content_chunks("Hi"), finish()]
    body = stream(*[{**value, "system_fingerprint": sent} for value in chunks])
    out = pipeline.feed(body) + pipeline.close()
    assert set(re.findall(rb'"system_fingerprint":"([^"]*)"', out)) == {expected.encode()}
