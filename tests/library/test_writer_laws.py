"""Laws of the writers: whatever is called in whatever order, the stream is right, and the whole reply is the same."""

from itertools import groupby
from typing import cast

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.laws.test_laws import is_cumulative
from tests.library.writer_calls import REQUESTS, WRITERS, Call, calls, write
from welldone import (
    EndpointName,
    Event,
    Reasoning,
    Refusal,
    Text,
    collect,
    lint,
    parse,
    repair,
    repair_response,
)

endpoints = pytest.mark.parametrize("endpoint", list(WRITERS))
UNORDERED = {"ext-reasoning-before-content"}
"""Reasoning after text is allowed, for models that think again. The rule is one of style."""


def assume_increments(made: list[Call]) -> None:
    """Leave out texts that look cumulative, which the judge reports."""
    texts: list[Event] = [Text(index, values[0]) for method, values, index in made if method == "text" and values[0]]
    assume(not any(is_cumulative(texts, index) for index in range(3)))
    assume(not is_cumulative([Text(0, event.text) for event in texts if isinstance(event, Text)], 0))


@endpoints
@given(made=calls, fails=st.booleans())
def test_whatever_is_called_the_stream_is_right(endpoint: EndpointName, made: list[Call], fails: bool) -> None:
    assume_increments(made)
    written = write(WRITERS[endpoint](REQUESTS[endpoint]), made, fails=fails)
    report = lint(written, endpoint, request=REQUESTS[endpoint])
    assert set(report.counts) <= UNORDERED


@endpoints
@given(made=calls)
def test_repair_does_not_change_what_a_writer_writes(endpoint: EndpointName, made: list[Call]) -> None:
    # Repair holds a call back until its arguments are known: keep-alives, texts and other choices may overtake it.
    made = [(method, values, 0) for method, values, _ in made if method != "keep_alive"]
    made.sort(key=lambda call: call[0] in ("tool_call", "call_in_pieces", "finish"))
    assume_increments(made)
    request = REQUESTS[endpoint] | {"n": 1}
    written = write(WRITERS[endpoint](request), made)
    assert b"".join(repair([written], endpoint, request=request)) == written


@endpoints
@given(made=calls)
def test_the_whole_reply_is_right(endpoint: EndpointName, made: list[Call]) -> None:
    stream = WRITERS[endpoint](None)
    write(stream, made)
    reply = stream.to_response()
    repaired = repair_response(msgspec.json.encode(reply), endpoint)
    assert (repaired.status, repaired.result.repairs, repaired.result.failure) == (200, [], None)
    assert msgspec.json.decode(repaired.body) == reply


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@given(made=calls, fails=st.booleans())
def test_collecting_the_stream_gives_the_whole_reply(endpoint: EndpointName, made: list[Call], fails: bool) -> None:
    stream = WRITERS[endpoint](REQUESTS[endpoint])
    written = write(stream, made, fails=fails)
    assert collect(parse(written, endpoint)) == stream.to_response()


@given(made=calls)
def test_parsing_gives_the_texts_that_were_written(made: list[Call]) -> None:
    stream = WRITERS["chat"](REQUESTS["chat"])
    written = write(stream, made)
    parsed = [event for event in parse(written) if isinstance(event, Text | Reasoning | Refusal)]
    finished: set[int] = set()
    expected = []
    for method, values, index in made:
        if method == "finish" and index not in finished and _is_accepted(made, method, values, index):
            finished.add(index)
        elif method in ("text", "reasoning", "refusal") and values[0] and index not in finished:
            expected.append((method, index, values[0]))
    assert [(type(event).__name__.lower(), event.index, event.text) for event in parsed] == expected


def _is_accepted(made: list[Call], method: str, values: tuple[object, ...], index: int) -> bool:
    """Whether a finish is legal: `tool_calls` needs a call of this choice before it."""
    before = made[: made.index((method, values, index))]
    has_calls = any(name in ("tool_call", "call_in_pieces") and choice == index for name, _, choice in before)
    return values != ("tool_calls",) or has_calls


@given(made=calls, size=st.integers(1, 300))
def test_the_size_of_reads_does_not_change_the_events(made: list[Call], size: int) -> None:
    written = write(WRITERS["chat"](None), made)
    pieces = [written[start : start + size] for start in range(0, len(written), size)]
    assert list(parse(pieces)) == list(parse(written))


def test_all_endpoints_have_a_writer() -> None:
    names = [cast("EndpointName", name) for name, _ in groupby(WRITERS)]
    assert names == ["chat", "completions", "responses", "messages"]
