"""Helpers for tests of continued streams."""

import json
from collections.abc import Callable
from typing import Any

from tests.protocol import build
from welldone.core.continuation import Continuation, ContinuationWay, Delivered
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import ChoiceStart, Event, Failure, Text
from welldone.core.request_facts import RequestFacts
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.stream.pipeline import StreamPipeline

LOST = Failure("the connection was lost", code="upstream_died")
REPLAY = Continuation(way=ContinuationWay.REPLAY, failure=LOST)
ENVELOPES = {Endpoint.CHAT: Envelope("chatcmpl-x", 1, "m"), Endpoint.COMPLETIONS: Envelope("cmpl-x", 1, "m")}
FACTS = RequestFacts(include_usage=True, is_usage_forced=True)


def prefill(text: str, *, is_guarded: bool = False, tokens: int = 0) -> Continuation:
    return Continuation(
        way=ContinuationWay.PREFILL, failure=LOST, prefill=text, is_guarded=is_guarded, delivered_tokens=tokens
    )


def make(endpoint: Endpoint = Endpoint.CHAT, facts: RequestFacts = FACTS, **fields: Any) -> StreamPipeline:  # noqa: ANN401 - arguments of a pipeline
    return StreamPipeline(endpoint, fallback=ENVELOPES[endpoint], facts=facts, is_continuable=True, **fields)


def frames(body: bytes) -> list[bytes]:
    """One frame per read, so that the fast path is used; the rest may be a part of a frame."""
    pieces = body.split(b"\n\n")
    return [*(piece + b"\n\n" for piece in pieces[:-1]), *([pieces[-1]] if pieces[-1] else [])]


def cut_and_replay(make_pipeline: Callable[[], StreamPipeline], first: bytes, again: bytes) -> bytes | None:
    """The bytes that are sent for a stream that breaks off and is replayed; None if it cannot be."""
    pipeline = make_pipeline()
    sent = b"".join(map(pipeline.feed, frames(first)))
    if pipeline.delivered(0) is None:
        return None
    pipeline.continue_part(0, REPLAY)
    return sent + b"".join(map(pipeline.feed, frames(again))) + pipeline.close() + pipeline.release_failure()


def is_clean(body: bytes, endpoint: Endpoint) -> bool:
    return not judge(Trace(body=body, endpoint=endpoint.value)).findings


SMALL = build.stream(
    build.role(),
    build.delta_chunk({"reasoning_content": "Hm, né"}),
    *build.content_chunks("Grüße", " 👍🏽", "\n\n", 'a "quote" \\', "x"),
    build.delta_chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]}),
    build.delta_chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
    build.delta_chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
    build.finish("tool_calls"),
    build.usage_chunk({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
)


def contents(sent: bytes) -> list[tuple[str, str]]:
    """The texts of a stream in order, by kind."""
    found: list[tuple[str, str]] = []
    for line in sent.decode().splitlines():
        if not line.startswith('data: {"id"'):
            continue
        for choice in json.loads(line[6:])["choices"]:
            for kind, text in choice["delta"].items():
                if kind != "role" and text:
                    before = found.pop()[1] if found and found[-1][0] == kind else ""
                    found.append((kind, before + text))
    return found


def delivered_of(*events: Event) -> Delivered:
    delivered = Delivered()
    delivered.record(list(events))
    return delivered


HELLO = delivered_of(ChoiceStart(0), Text(0, "Hello"), Text(0, " you"))
