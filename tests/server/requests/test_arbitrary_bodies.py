"""Property tests: any JSON is a valid request or a client error, never anything else."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.requests.builders import CAPABILITIES, HELLO, MODEL, capabilities_with
from tests.server.requests.test_json_schema import KEPT
from tests.server.requests.test_messages import AUDIO, CALL, IMAGE
from tests.server.requests.test_tools import NAMED, TWO
from welldone.gateway.errors import ApiError
from welldone.schemas.chat import VLLM_FIELD, ChatRequest, CompletionRequest
from welldone.schemas.fields import FieldHandling, describe_fields
from welldone.server.api.embeddings import read_detokenize, read_embeddings, read_rerank, read_tokenize
from welldone.server.requests.chat import read_chat, read_completions
from welldone.server.requests.fields import JsonSizeLimits, ValidatedRequest, read_body
from welldone.server.requests.sampling import UNKNOWN_CAPABILITIES

READERS = [read_chat, read_completions, read_embeddings, read_rerank, read_tokenize, read_detokenize]
OTHER_NAMES = ["input", "query", "documents", "content", "tokens", "dimensions", "encoding_format", "top_n", "whatever"]
OURS = {"messages", "prompt", "stream", "stream_options", "tools", "tool_choice", "response_format", "json_schema"}
FIELDS = {field.name: field for schema in (ChatRequest, CompletionRequest) for field in describe_fields(schema)}
SENT = {
    name
    for name, field in FIELDS.items()
    if field.handling in (FieldHandling.FORWARDED, FieldHandling.TRANSLATED) or VLLM_FIELD in field.extra
} | OURS

plain = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5)
seeds = st.sampled_from(
    [HELLO, TWO, NAMED, CALL, [IMAGE], AUDIO, "auto", "required", "json_schema", "json_object", "text", "assistant"]
)
keywords = st.sampled_from(
    ["role", "content", "type", "text", "function", "name", "parameters", "schema", "properties", "anyOf", "$ref", "id"]
)
values = st.recursive(
    plain | seeds | st.sampled_from(KEPT),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(keywords | st.text(max_size=4), inside, max_size=3),
    max_leaves=8,
)
names = st.sampled_from([*FIELDS, *OTHER_NAMES])
odd_bodies = st.dictionaries(names, values, max_size=6)
near_bodies = odd_bodies.map(lambda body: {"messages": HELLO, "prompt": "x", "input": "x", **body})
formats = st.builds(
    lambda schema: {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    st.dictionaries(
        keywords | st.sampled_from(["enum", "required", "items", "pattern", "$defs", "allOf"]), values, max_size=4
    ),
)
capabilities = st.sampled_from(
    [
        CAPABILITIES,
        UNKNOWN_CAPABILITIES,
        capabilities_with(kind="command"),
        capabilities_with(tools=False, images=False),
        capabilities_with(context=0),
    ]
)


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
@given(data=st.data())
def test_any_object_is_a_valid_request_or_a_client_error(read: Callable[..., Any], data: st.DataObject) -> None:
    body = data.draw(odd_bodies | near_bodies)
    try:
        found = read(body, MODEL, data.draw(capabilities))
    except ApiError as error:
        check_error(error)
    else:
        if isinstance(found, ValidatedRequest):
            check_request(found)
        else:
            JsonSizeLimits("body").check(msgspec.json.encode(found[1]))


@given(wanted=formats, tools=st.lists(st.sampled_from(TWO), max_size=2, unique_by=id), choice=values)
def test_any_format_and_tool_choice_is_a_valid_request_or_a_client_error(
    wanted: object, tools: object, choice: object
) -> None:
    body = {"messages": HELLO, "response_format": wanted, "tools": tools, "tool_choice": choice}
    try:
        check_request(read_chat(body, MODEL, CAPABILITIES))
    except ApiError as error:
        check_error(error)


@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:\\0123456789eE.-+ntfu', max_size=200).map(str.encode))
def test_any_bytes_are_an_object_or_a_client_error(data: bytes) -> None:
    try:
        assert isinstance(read_body(data, "application/json"), dict)
    except ApiError as error:
        check_error(error)


def check_error(error: ApiError) -> None:
    """Check that the error is a short 4xx that can be encoded."""
    assert 400 <= error.status < 500
    assert len(error.message) < 500
    assert msgspec.json.decode(error.body())["error"]["message"] == error.message


def check_request(request: ValidatedRequest) -> None:
    """Check that each body can be encoded, is not deep, and has only known fields."""
    assert request.prompt_count >= 1
    assert 1 <= len(request.bodies) <= 64
    for part in request.bodies:
        JsonSizeLimits("part").check(msgspec.json.encode(part))
        assert part.keys() <= SENT
        assert part["stream"] is True
