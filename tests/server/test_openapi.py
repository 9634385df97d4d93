"""The OpenAPI document and the server agree: in paths, in methods, in fields, and in every limit."""

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
from tests.server.gateways import gateway
from tests.server.requests.build import ABLE, HELLO, MODEL, Body, able
from tests.table import table
from welldone.gateway.errors import ApiError, ErrorFormat
from welldone.mock.script import MockScript
from welldone.protocol.json_budget import run_to_completion
from welldone.server.api.openapi.document import API_PREFIX, OPEN_PATHS, PASSTHROUGH_OPERATIONS, full_openapi_document
from welldone.server.api.openapi.requests import REQUEST_EXAMPLES
from welldone.server.requests import anthropic, responses
from welldone.server.requests.anthropic import anthropic_to_chat
from welldone.server.requests.chat import read_chat, read_completions
from welldone.server.requests.fields import GENERATION_FIELDS
from welldone.server.requests.ollama import CHAT_OPTIONS, read_ollama_chat, read_ollama_generate
from welldone.server.requests.responses import read_input_items, read_storage_options, responses_to_chat
from welldone.server.requests.vectors import read_detokenize, read_embeddings, read_rerank, read_tokenize

WHOLE: Any = json.loads(json.dumps(full_openapi_document()))
SCHEMAS = WHOLE["components"]["schemas"]
SOME = "a-name"
FREE = able(vocabulary=0, context=0, embedding=0)
"""A model that has not said what it can do: only the limits of the document are left."""


def _chat(body: Body) -> None:
    read_chat(body, MODEL, FREE)


def _response(body: Body) -> None:
    read_storage_options(body)
    _chat(
        responses_to_chat(
            body, [], run_to_completion(read_input_items(body, lambda _: None, 10**6)), ignores_unknown_tools=False
        ).chat
    )


READERS: dict[str, tuple[Body, Callable[[Body], object]]] = {
    "ChatRequest": ({"messages": HELLO}, _chat),
    "CompletionRequest": ({"prompt": "once"}, lambda body: read_completions(body, MODEL, FREE)),
    "ResponseRequest": ({"input": "hi"}, _response),
    "AnthropicRequest": (
        {"messages": HELLO, "max_tokens": 1},
        lambda body: _chat(anthropic_to_chat(body, "llamacpp", ignores_unknown_tools=False).chat),
    ),
    "EmbeddingsRequest": ({"input": "hi"}, lambda body: read_embeddings(body, MODEL, FREE)),
    "RankRequest": ({"query": "a", "documents": ["b"]}, lambda body: read_rerank(body, MODEL, FREE)),
    "TokensRequest": ({"content": "a"}, lambda body: read_tokenize(body, MODEL, FREE)),
    "TextOfTokensRequest": ({"tokens": [1]}, lambda body: read_detokenize(body, MODEL, FREE)),
    "OllamaChatRequest": ({"messages": HELLO}, lambda body: _chat(read_ollama_chat(body))),
    "OllamaGenerateRequest": ({"prompt": "hi"}, lambda body: _chat(read_ollama_generate(body))),
}
BESIDE: dict[tuple[str, str], Body] = {("ChatRequest", "top_logprobs"): {"logprobs": True}}
"""What a field needs beside it."""


def takes(component: str, body: Body) -> bool:
    """Whether the reader of a body takes it."""
    try:
        READERS[component][1](body)
    except ApiError:
        return False
    return True


def fits(component: str, body: Body) -> bool:
    """Whether a body is as the document says."""
    return _validator(component).is_valid(body)


@cache
def _validator(component: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{component}", "components": WHOLE["components"]})


def limits() -> Iterator[Any]:
    """Every number and length with a limit: the field, a value at the limit, and one beyond it."""
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
def test_a_value_at_its_limit_is_taken_and_one_beyond_is_not(
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
"""Right for one field, and wrong for others."""


@table("component", READERS)
def test_whatever_a_reader_takes_fits_the_document(component: str) -> None:
    base = READERS[component][0]
    bodies = [{**base, name: value} for name in SCHEMAS[component]["properties"] for value in ODD]
    taken = [body for body in bodies if takes(component, body)]
    assert taken
    assert len(taken) < len(bodies)
    assert [body for body in taken if not fits(component, body)] == []


@table("component", READERS)
def test_a_plain_body_fits_the_document_and_an_empty_one_does_not_unless_nothing_is_needed(component: str) -> None:
    assert fits(component, READERS[component][0])
    assert fits(component, {}) == ("required" not in SCHEMAS[component])


@table("component", REQUEST_EXAMPLES)
def test_every_example_fits_the_document_and_is_taken(component: str) -> None:
    assert fits(component, REQUEST_EXAMPLES[component])
    assert takes(component, REQUEST_EXAMPLES[component])


def test_generators_of_clients_can_read_every_schema() -> None:
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
        ("ChatRequest", [row.name for row in GENERATION_FIELDS if row.endpoint != "completions"]),
        ("CompletionRequest", [row.name for row in GENERATION_FIELDS if row.endpoint != "chat"]),
        ("ResponseRequest", ["model", *(row.name for row in responses.RESPONSES_FIELDS)]),
        ("AnthropicRequest", [row.name for row in anthropic.ANTHROPIC_FIELDS]),
        ("AnthropicTokensRequest", [row.name for row in anthropic.ANTHROPIC_FIELDS]),
    ],
)
def test_every_row_of_a_table_is_a_member_of_its_body(component: str, names: list[str]) -> None:
    assert sorted(SCHEMAS[component]["properties"]) == sorted(names)


def test_every_schema_is_one_and_names_only_what_is_there() -> None:
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
def test_an_outside_judge_finds_the_document_valid() -> None:
    program = Path(sys.executable).with_name("openapi-spec-validator")
    if not program.exists():
        pytest.skip("run: make packages")
    command = [str(program), "--schema", "3.1.0", str(ROOT / "docs" / "openapi.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_path_is_in_the_document_and_every_path_of_it_is_routed(tmp_path: Path) -> None:
    async def check() -> None:
        async with gateway(tmp_path, MockScript(), slots=True) as running:
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
                        assert named == {ErrorFormat.OPENAI: "Error", ErrorFormat.ANTHROPIC: "AnthropicError"}.get(
                            route.error_format, "OllamaError"
                        )

    run(check())


def test_without_upstreams_nothing_is_listed_that_only_they_have(tmp_path: Path) -> None:
    async def check() -> None:
        async with gateway(tmp_path) as running:
            paths = (await running.get("/openapi.json")).json["paths"]
            assert not {path.replace("*", "{id}") for path in PASSTHROUGH_OPERATIONS} & paths.keys()
            assert "/slots" not in paths
            assert "/chat/completions" in paths

    run(check())


def test_it_wants_a_key_and_is_the_same_below_v1(tmp_path: Path) -> None:
    async def check() -> None:
        async with gateway(tmp_path, keys=["wd-test-key-0123456789"]) as running:
            for path in ("/openapi.json", "/v1/openapi.json"):
                assert (await running.get(path)).status == 401

    run(check())


@table("name", CHAT_OPTIONS)
def test_every_option_of_ollama_is_a_field_of_chat(name: str) -> None:
    assert name in SCHEMAS["ChatRequest"]["properties"]


@table("name", ["max_tokens", "max_completion_tokens", "n_predict"])
@table("wrong", ["many", 0, -2, 2**63 + 1, 1.5])
def test_a_wrong_limit_of_tokens_is_refused_beside_a_right_one(name: str, wrong: object) -> None:
    right = dict.fromkeys(("max_tokens", "max_completion_tokens", "n_predict"), 5)
    with pytest.raises(ApiError, match=name):
        read_chat({"messages": HELLO, **right, name: wrong}, MODEL, ABLE)


def test_the_second_name_of_a_text_for_tokens_is_checked_as_well() -> None:
    with pytest.raises(ApiError, match="prompt"):
        read_tokenize({"content": "a", "prompt": 5}, MODEL, ABLE)
    assert read_tokenize({"content": "a", "prompt": "b"}, MODEL, ABLE).bodies == [{"content": "a"}]


@pytest.mark.parametrize("name", [[], {}, 5])
def test_a_tool_that_is_left_out_must_have_a_name_of_text(name: object) -> None:
    body = {"messages": HELLO, "max_tokens": 1, "tools": [{"type": "web_search", "name": name}]}
    with pytest.raises(ApiError, match=r"tools\[0\]\.name"):
        anthropic_to_chat(body, "llamacpp", ignores_unknown_tools=True)


def test_a_document_is_small_and_plain_json() -> None:
    assert len(msgspec.json.encode(full_openapi_document())) < 2**18
