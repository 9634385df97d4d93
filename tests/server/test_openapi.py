"""The OpenAPI document matches the server in paths, methods, fields and limits."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from tests.clients.client import ROOT
from tests.http.aio import run
from tests.server.requests.builders import CAPABILITIES, HELLO, MODEL, Body, capabilities_with
from tests.server.running_gateway import gateway
from tests.table import table
from welldone.config.model import ModelSettings
from welldone.core.envelope import REPLY_OBJECT, Endpoint
from welldone.core.json_budget import run_to_completion
from welldone.dialects.messages.objects import USAGE_COUNTS
from welldone.dialects.responses.objects import RESPONSE_DEFAULTS
from welldone.gateway.errors import ApiError, ErrorFormat
from welldone.mock.script import MockScript
from welldone.schemas.anthropic import AnthropicRequest
from welldone.schemas.chat import ChatRequest, CompletionRequest
from welldone.schemas.fields import describe_fields
from welldone.schemas.responses import CompactRequest, ResponseRequest
from welldone.schemas.utilities import AddKeyRequest
from welldone.server.api.embeddings import read_detokenize, read_embeddings, read_rerank, read_tokenize
from welldone.server.api.openapi import (
    API_PREFIX,
    OPEN_PATHS,
    PASSTHROUGH_OPERATIONS,
    REQUEST_EXAMPLES,
    full_openapi_document,
)
from welldone.server.reload import ReloadResult
from welldone.server.requests.anthropic import anthropic_to_chat
from welldone.server.requests.chat import read_chat, read_completions
from welldone.server.requests.fields import read_fields
from welldone.server.requests.gemini import gemini_to_chat
from welldone.server.requests.ollama import CHAT_OPTIONS, read_ollama_chat, read_ollama_generate
from welldone.server.requests.response_items import read_input_items
from welldone.server.requests.responses import compaction_chat, read_storage_options, responses_to_chat
from welldone.server.resume.api import LAST_EVENT_HEADER, RESUME_HEADER

WHOLE: Any = json.loads(json.dumps(full_openapi_document()))
SCHEMAS = WHOLE["components"]["schemas"]
SOME = "a-name"
FREE = capabilities_with(vocabulary_size=0, context=0, embedding_size=0)
"""Unknown capabilities: only the limits of the document apply."""
ERROR_COMPONENTS = {
    ErrorFormat.OPENAI: "Error",
    ErrorFormat.ANTHROPIC: "AnthropicError",
    ErrorFormat.OLLAMA: "OllamaError",
    ErrorFormat.GEMINI: "GeminiError",
}


def _chat(body: Body) -> None:
    read_chat(body, MODEL, FREE)


def _response(body: Body) -> None:
    read_storage_options(body)
    _chat(
        responses_to_chat(
            body, [], run_to_completion(read_input_items(body, lambda _: None, 10**6)), unknown_tools="refuse"
        ).chat
    )


def _compaction(body: Body) -> None:
    request = read_fields(body, CompactRequest)
    items = run_to_completion(read_input_items(body, lambda _: None, 10**6))
    _chat({"model": request.model, **compaction_chat([], items, request.instructions)})


READERS: dict[str, tuple[Body, Callable[[Body], object]]] = {
    "ChatRequest": ({"messages": HELLO}, _chat),
    "CompletionRequest": ({"prompt": "once"}, lambda body: read_completions(body, MODEL, FREE)),
    "ResponseRequest": ({"input": "hi"}, _response),
    "CompactRequest": ({"model": "m", "input": "hi"}, _compaction),
    "AnthropicRequest": (
        {"messages": HELLO, "max_tokens": 1},
        lambda body: _chat(anthropic_to_chat(body, "llamacpp", ignores_unknown_tools=False).chat),
    ),
    "GeminiRequest": (
        {"contents": [{"parts": [{"text": "hi"}]}]},
        lambda body: _chat(gemini_to_chat(body, "llamacpp", model="m", ignores_unknown_tools=False).chat),
    ),
    "EmbeddingsRequest": ({"input": "hi"}, lambda body: read_embeddings(body, MODEL, FREE)),
    "RerankRequest": ({"query": "a", "documents": ["b"]}, lambda body: read_rerank(body, MODEL, FREE)),
    "TokenizeRequest": ({"content": "a"}, lambda body: read_tokenize(body, MODEL, FREE)),
    "DetokenizeRequest": ({"tokens": [1]}, lambda body: read_detokenize(body, MODEL, FREE)),
    "AddKeyRequest": ({"name": "a"}, lambda body: read_fields(body, AddKeyRequest)),
    "OllamaChatRequest": ({"messages": HELLO}, lambda body: _chat(read_ollama_chat(body))),
    "OllamaGenerateRequest": ({"prompt": "hi"}, lambda body: _chat(read_ollama_generate(body))),
}
BESIDE: dict[tuple[str, str], Body] = {("ChatRequest", "top_logprobs"): {"logprobs": True}}
"""Other fields that a field requires."""


def takes(component: str, body: Body) -> bool:
    """Whether the validator accepts a body."""
    try:
        READERS[component][1](body)
    except ApiError:
        return False
    return True


def fits(component: str, body: Body) -> bool:
    """Whether a body matches the document."""
    return _validator(component).is_valid(body)


@cache
def _validator(component: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{component}", "components": WHOLE["components"]})


def limits() -> Iterator[Any]:
    """Return every limited field with a value at the limit and one beyond it."""
    for component in READERS:
        for name, schema in SCHEMAS[component]["properties"].items():
            for at, beyond in _edges(schema):
                yield pytest.param(component, name, at, beyond, id=f"{component}-{name}-{str(at)[:24]}")


def _edges(schema: Any) -> Iterator[tuple[object, object]]:  # noqa: ANN401 - whatever a schema is
    step = 1 if "integer" in schema.get("type", ()) else 0.5
    for key, sign in (("minimum", -1), ("maximum", 1)):
        if key in schema:
            yield schema[key], schema[key] + sign * step
    for part in schema.get("anyOf", ()):
        yield from _edges(part)
    if "maxLength" in schema:
        yield "x" * schema["maxLength"], "x" * (schema["maxLength"] + 1)
    items = schema.get("items", {})
    if "maxLength" in items:
        yield ["x"] * schema["maxItems"], ["x"] * (schema["maxItems"] + 1)
        yield ["x" * items["maxLength"]], ["x" * (items["maxLength"] + 1)]


@table(("component", "name", "at", "beyond"), list(limits()))
def test_a_value_at_its_limit_is_accepted_and_one_beyond_is_not(
    component: str, name: str, at: object, beyond: object
) -> None:
    body = {**READERS[component][0], **BESIDE.get((component, name), {})}
    if name == "best_of":  # as many as answers, or none
        body["n"] = at
    assert fits(component, {**body, name: at})
    assert takes(component, {**body, name: at})
    assert not fits(component, {**body, name: beyond})
    assert not takes(component, {**body, name: beyond})


ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 1.5, 5.0, 10**30, -(10**30), "", "a", "none", "auto", "text", "x" * 600),
    *([], [None], ["a"], [1], [[1]], [[]], [{}], ["text"]),
    *({}, {"type": "text"}, {"type": "json_object"}, {"type": "function"}, {"a": "b"}, {"1": 1}, {"name": "a"}),
    *({"enabled": 5}, {"type": "json_schema", "json_schema": {"strict": 1}}, {"type": "json_object", "schema": 5}),
    *({"function": {"name": "a"}}, [{"function": {"name": "a"}}], [{"type": "function", "name": "a"}]),
    *([{"type": "", "function": {"name": "a"}}], [{"type": 0, "function": {"name": "a"}}], [{"type": "a"}]),
    *([{"role": "user", "content": "a"}], [{"role": "user", "content": None}], [{"role": "user", "content": []}]),
    *([{"role": "user", "content": "a", "name": 5}], [{"role": "assistant", "refusal": "a"}], [{"role": "a"}]),
    *([{"role": "assistant", "content": "a", "tool_calls": ""}], [{"role": "tool", "content": "a"}]),
    *(
        [{"id": "a"}],
        [{"type": "reasoning"}],
        [{"type": "reasoning", "id": 5}],
        [{"type": "function_call", "name": "a"}],
    ),
    *([{"role": "user", "content": [{"type": "text", "text": "a"}]}], [{"role": "user", "content": [{"type": "a"}]}]),
    *([{"role": "assistant", "content": [{"type": "redacted_thinking"}]}, {"role": "user", "content": "a"}],),
)
"""Values that are valid for some fields and invalid for others."""


@table("component", READERS)
def test_every_valid_body_matches_the_document(component: str) -> None:
    base = READERS[component][0]
    bodies = [{**base, name: value} for name in SCHEMAS[component]["properties"] for value in ODD]
    taken = [body for body in bodies if takes(component, body)]
    assert taken
    assert len(taken) < len(bodies)
    assert [body for body in taken if not fits(component, body)] == []


@table("component", READERS)
def test_required_fields_match_the_document(component: str) -> None:
    assert fits(component, READERS[component][0])
    assert fits(component, {}) == ("required" not in SCHEMAS[component])


@table("component", REQUEST_EXAMPLES)
def test_every_example_is_valid(component: str) -> None:
    assert fits(component, REQUEST_EXAMPLES[component])
    assert takes(component, REQUEST_EXAMPLES[component])


def test_client_generators_can_read_every_schema() -> None:
    for schema in _schemas(SCHEMAS):
        assert not isinstance(schema.get("const"), dict | list)
        words = [word for word in schema.get("enum", ()) if word is not None]
        assert len({type(word) for word in words}) <= 1, schema
        assert schema.get("type") not in ("array", ["array", "null"]) or "items" in schema, schema
        if schema.get("type") in ("object", ["object", "null"]):
            assert schema.keys() & {"properties", "additionalProperties", "maxProperties"}, schema


def _schemas(value: object) -> Iterator[Any]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        yield from chain.from_iterable(map(_schemas, value))


@table(
    ("component", "names"),
    [
        ("ChatRequest", [field.name for field in describe_fields(ChatRequest)]),
        ("CompletionRequest", [field.name for field in describe_fields(CompletionRequest)]),
        ("ResponseRequest", [field.name for field in describe_fields(ResponseRequest)]),
        ("AnthropicRequest", [field.name for field in describe_fields(AnthropicRequest)]),
        ("AnthropicTokensRequest", [field.name for field in describe_fields(AnthropicRequest)]),
    ],
)
def test_every_known_field_is_in_the_document(component: str, names: list[str]) -> None:
    assert sorted(SCHEMAS[component]["properties"]) == sorted(names)


def test_the_rows_name_the_members_and_headers_of_the_code() -> None:
    assert SCHEMAS["Response"]["properties"].keys() > RESPONSE_DEFAULTS.keys()
    assert SCHEMAS["AnthropicMessage"]["properties"]["usage"]["properties"].keys() == {*USAGE_COUNTS}
    assert SCHEMAS["ChatCompletion"]["properties"]["object"] == {"const": REPLY_OBJECT[Endpoint.CHAT]}
    assert SCHEMAS["Completion"]["properties"]["object"] == {"const": REPLY_OBJECT[Endpoint.COMPLETIONS]}
    operations = chain.from_iterable(item.values() for item in WHOLE["paths"].values())
    parameters = chain.from_iterable(
        operation.get("parameters", ()) for operation in operations if "summary" in operation
    )
    headers = {parameter["name"] for parameter in parameters if parameter["in"] == "header"}
    assert headers == {RESUME_HEADER, LAST_EVENT_HEADER}


def test_every_schema_is_valid_and_has_no_dangling_references() -> None:
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
    named = set(_refs(WHOLE))
    assert named <= {f"#/components/schemas/{name}" for name in SCHEMAS}
    assert {f"#/components/schemas/{name}" for name in SCHEMAS} <= named


def _refs(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (str(inner) for key, inner in value.items() if key == "$ref")
        value = list(value.values())
    if isinstance(value, list):
        yield from chain.from_iterable(map(_refs, value))


@pytest.mark.tier2
def test_an_openapi_validator_accepts_the_document() -> None:
    program = Path(sys.executable).with_name("openapi-spec-validator")
    if not program.exists():
        pytest.skip("run: make packages")
    command = [str(program), "--schema", "3.1.0", str(ROOT / "docs" / "openapi.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def unchanged() -> ReloadResult:
    return ReloadResult(outcome="unchanged")


def test_the_document_and_the_routes_have_the_same_paths(tmp_path: Path) -> None:
    models = tuple(ModelSettings(name=name, command=("false", "{port}")) for name in ("x", "y"))  # never loaded

    async def check() -> None:
        async with gateway(
            tmp_path, MockScript(), config={"models": models}, slots=True, on_reload=unchanged
        ) as running:
            routes = running.server.routes
            document = (await running.get("/openapi.json")).json
            assert document == WHOLE
            assert len(document["paths"]) == len(routes.methods_by_path)
            for path, item in document["paths"].items():
                route = routes.find(API_PREFIX + path.replace("{id}", SOME))
                assert route is not None, path
                assert routes.find(path.replace("{id}", SOME)) is not None
                methods = {method.upper(): operation for method, operation in item.items() if method != "parameters"}
                assert methods.keys() == route.handlers.keys(), path
                for operation in methods.values():
                    assert (
                        (operation.get("security") == [])
                        == route.is_public
                        == (path.replace("{id}", "*") in OPEN_PATHS)
                    )
                    errors = operation["responses"].get("401" if not route.is_public else "400")
                    if errors is not None:
                        named = errors["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                        assert named == ERROR_COMPONENTS[route.error_format]

    run(check())


def test_passthrough_endpoints_are_not_listed_without_upstreams(tmp_path: Path) -> None:
    async def check() -> None:
        async with gateway(tmp_path) as running:
            paths = (await running.get("/openapi.json")).json["paths"]
            assert not {name.partition(" ")[2].replace("*", "{id}") for name in PASSTHROUGH_OPERATIONS} & paths.keys()
            assert "/slots" not in paths
            assert "/chat/completions" in paths

    run(check())


def test_the_document_needs_a_key_and_is_also_served_below_v1(tmp_path: Path) -> None:
    async def check() -> None:
        async with gateway(tmp_path, keys=["wd-test-key-0123456789"]) as running:
            for path in ("/openapi.json", "/v1/openapi.json"):
                assert (await running.get(path)).status == 401

    run(check())


@table("name", CHAT_OPTIONS)
def test_every_ollama_option_is_a_field_of_chat(name: str) -> None:
    assert name in SCHEMAS["ChatRequest"]["properties"]


@table("name", ["max_tokens", "max_completion_tokens", "n_predict"])
@table("wrong", ["many", 0, -2, 2**63 + 1, 1.5])
def test_an_invalid_token_limit_is_rejected_beside_a_valid_one(name: str, wrong: object) -> None:
    right = dict.fromkeys(("max_tokens", "max_completion_tokens", "n_predict"), 5)
    with pytest.raises(ApiError, match=name):
        read_chat({"messages": HELLO, **right, name: wrong}, MODEL, CAPABILITIES)


def test_both_names_of_the_text_to_tokenise_are_validated() -> None:
    with pytest.raises(ApiError, match="prompt"):
        read_tokenize({"content": "a", "prompt": 5}, MODEL, CAPABILITIES)
    assert read_tokenize({"content": "a", "prompt": "b"}, MODEL, CAPABILITIES)[1] == {"content": "a"}


@pytest.mark.parametrize("name", [[], {}, 5])
def test_the_name_of_an_ignored_tool_must_be_a_string(name: object) -> None:
    body = {"messages": HELLO, "max_tokens": 1, "tools": [{"type": "web_search", "name": name}]}
    with pytest.raises(ApiError, match=r"tools\[0\]\.name"):
        anthropic_to_chat(body, "llamacpp", ignores_unknown_tools=True)


def test_the_document_is_small_plain_json() -> None:
    assert len(msgspec.json.encode(full_openapi_document())) < 2**18
