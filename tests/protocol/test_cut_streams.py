"""Streams that are cut and not continued, and failures in continued ones."""

from tests.protocol import build
from tests.protocol.continuations import ENVELOPES, LOST, REPLAY, SMALL, contents, is_clean, make, prefill
from welldone.core.continuation import PrefillStyle, plan_continuation
from welldone.core.envelope import Endpoint
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.core.state import PartState
from welldone.stream.fan_out import FanOut
from welldone.stream.pipeline import StreamPipeline
from welldone.stream.replay import StreamReplay


def test_a_failure_is_held_until_it_is_released() -> None:
    pipeline = make()
    sent = pipeline.feed(SMALL[:500]) + pipeline.feed(b'data: {"error":{"message":"no"}}\n\ndata: [DONE]\n\n')
    assert (pipeline.part_state(0), pipeline.failure) == (PartState.CUT, None)
    assert b"error" not in sent
    sent += pipeline.release_failure() + pipeline.close()
    assert pipeline.part_state(0) is PartState.FAILED
    assert is_clean(sent, Endpoint.CHAT)
    assert sent.count(b'"error"') == 1


def test_a_failure_from_outside_releases_a_part_that_was_cut() -> None:
    pipeline = make()
    pipeline.feed(SMALL[:500])
    assert pipeline.close() == b""
    assert pipeline.part_state(0) is PartState.CUT
    assert b"ended before the answer was complete" in pipeline.fail(LOST)
    several = make(fan_out=FanOut(2))
    several.feed(SMALL[:500], 0)
    several.close(0)
    assert LOST.message.encode() in several.fail(LOST)
    other = make(fan_out=FanOut(2))
    other.feed(SMALL[:500], 1)
    other.close(1)
    assert b"ended before" in other.release_failure(1)


def test_a_failure_in_a_continued_stream_sends_nothing_twice() -> None:
    pipeline = make(facts=RequestFacts(stop_strings=("xyz",)))
    sent = pipeline.feed(build.stream(build.role(), *build.content_chunks("Hello", " you"), end=b""))
    pipeline.continue_part(0, REPLAY)
    sent += pipeline.feed(build.stream(build.role(), *build.content_chunks("Hello", " you", " x"), end=b""))
    sent += pipeline.fail(LOST)
    assert contents(sent) == [("content", "Hello you x")]


def test_finished_answers_and_strict_violations_are_not_continued_by_prefill() -> None:
    pipeline = make()
    pipeline.feed(build.stream(build.role(), *build.content_chunks("Hello"), build.finish(), end=b""))
    finished = pipeline.delivered(0)
    assert finished is not None
    assert plan_continuation({}, finished, LOST, style=PrefillStyle.ENGINE) is None
    assert plan_continuation({"temperature": 0}, finished, LOST, style=PrefillStyle.ENGINE) == REPLAY
    strict = make(options=RepairOptions(strict=frozenset({"all"})))
    strict.feed(build.stream(*build.content_chunks("Hello"), end=b""))
    assert strict.delivered(0) is None
    plain = StreamPipeline(Endpoint.CHAT, fallback=ENVELOPES[Endpoint.CHAT])
    assert plain.delivered(0) is None


def test_a_reply_that_is_not_streamed_is_never_cut() -> None:
    pipeline = make()
    assert b'"error"' in pipeline.feed_reply(b'{"error":{"message":"no"}}')
    assert pipeline.failure is not None


def test_a_stop_string_ends_a_continued_answer() -> None:
    pipeline = make(facts=RequestFacts(stop_strings=("END",)))
    sent = pipeline.feed(build.stream(build.role(), *build.content_chunks("One", " E"), end=b""))
    delivered = pipeline.delivered(0)
    assert delivered is not None
    assert delivered.choices[0].text == "One"  # the rest may be a stop string
    pipeline.continue_part(0, prefill("One"))
    sent += pipeline.feed(build.stream(build.role(), *build.content_chunks(" E", "N", "D", " two"), end=b""))
    assert pipeline.part_state(0) is PartState.STOPPED
    sent += pipeline.close()
    assert contents(sent) == [("content", "One ")]
    assert b'"finish_reason":"stop"' in sent


def test_a_replay_in_the_inspector_shows_both_streams() -> None:
    plain, replay = make(), StreamReplay(make())
    sent = plain.feed(SMALL[:700])
    steps = list(replay.feed(SMALL[:700]))
    plain.continue_part(0, REPLAY)
    steps += replay.continue_part(0, REPLAY)
    sent += plain.feed(SMALL)
    steps += list(replay.feed(SMALL))
    assert b"".join(step.received for step in steps) == SMALL[:700] + SMALL
    assert b"".join(step.sent for step in steps) == sent
    broken = b'data: {"error":{"message":"no"}}\n\n'
    plain, replay = make(), StreamReplay(make())
    sent = plain.feed(SMALL[:700] + broken) + plain.release_failure() + plain.close()
    steps = [*replay.feed(SMALL[:700] + broken), *replay.release_failure(0), *replay.close()]
    assert b"".join(step.sent for step in steps) == sent
