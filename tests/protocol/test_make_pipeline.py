"""Selection of the pipeline for a captured reply."""

import pytest

from tests.table import table
from welldone.core.envelope import Endpoint
from welldone.core.events import Json
from welldone.dialects.same_dialect import PassthroughRepairer
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline, make_pipeline

REQUEST: Json = {"model": "asked", "stream": True, "stream_options": {"include_usage": True}}


@table("request_body", [None, REQUEST])
@table("is_stream", [True, False])
@table("endpoint", Endpoint)
def test_each_endpoint_has_a_pipeline(endpoint: Endpoint, is_stream: bool, request_body: Json | None) -> None:
    pipeline = make_pipeline(endpoint, request_body, id_stem="1", created=1, is_stream=is_stream)
    if endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS):
        assert type(pipeline) is (StreamPipeline if is_stream else BufferedPipeline)
    else:
        assert isinstance(pipeline, PassthroughRepairer)


@pytest.mark.parametrize(("request_body", "model"), [(None, b"unknown"), (REQUEST, b"asked")])
def test_missing_envelope_fields_are_filled_in(request_body: Json | None, model: bytes) -> None:
    pipeline = make_pipeline(Endpoint.CHAT, request_body, id_stem="stem", created=7, is_stream=True)
    sent = pipeline.feed(b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n')
    assert sent is not None
    assert b'"id":"chatcmpl-stem","object":"chat.completion.chunk","created":7,"model":"%b"' % model in sent


@pytest.mark.parametrize(
    ("request_body", "reasoning"), [(None, b"why"), (REQUEST, b"why"), (REQUEST | {"reasoning_effort": "none"}, None)]
)
def test_open_think_mode_is_ignored_if_the_request_turns_thinking_off(
    request_body: Json | None, reasoning: bytes | None
) -> None:
    pipeline = make_pipeline(Endpoint.CHAT, request_body, id_stem="stem", created=7, is_stream=True, think="open")
    sent = pipeline.feed(b'data: {"choices":[{"index":0,"delta":{"content":"why</think>so"}}]}\n\n')
    assert sent is not None
    assert (b'"reasoning_content":"why"' in sent) is (reasoning is not None)
