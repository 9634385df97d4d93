"""Translation of Anthropic requests into chat requests."""

import base64
import json
from typing import Any

import pytest

from tests.models.picture import png
from tests.server.requests.builders import CAPABILITIES, MODEL, capabilities_with
from tests.table import table
from welldone.core.events import Json
from welldone.gateway.errors import ApiError, ErrorFormat, invalid_request
from welldone.schemas.anthropic import AnthropicRequest
from welldone.schemas.fields import FieldHandling, describe_fields
from welldone.server.requests.anthropic import anthropic_to_chat
from welldone.server.requests.chat import read_chat
from welldone.server.requests.fields import ChatTranslation, rename_error_param
from welldone.server.requests.upstream_body import read_upstream_request

IMAGE = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
WEATHER = {"name": "weather", "description": "tells it", "input_schema": {"type": "object", "properties": {}}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
FUNCTION = {"name": "weather", "description": "tells it", "parameters": WEATHER["input_schema"]}
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln", "days": 2}}
CALL = {
    "id": "toolu_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city":"Köln","days":2}'},
}


def user(*content: Any) -> Json:  # noqa: ANN401 - a text, or blocks
    return {"role": "user", "content": content[0] if content and isinstance(content[0], str) else list(content)}


def assistant(*content: Any) -> Json:  # noqa: ANN401 - a text, or blocks
    return {**user(*content), "role": "assistant"}


def text(content: str) -> Json:
    return {"type": "text", "text": content, "cache_control": {"type": "ephemeral"}, "citations": None}


def result(content: Any = "sunny", **more: Any) -> Json:  # noqa: ANN401 - a text, or blocks
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


def read(
    kind: str = "llamacpp",
    /,
    *,
    ignores_tools: bool = False,
    is_count_only: bool = False,
    **body: Any,  # noqa: ANN401 - any body
) -> ChatTranslation:
    whole = {"model": "m", "max_tokens": 10, "messages": [user("Hi")], **body}
    return anthropic_to_chat(whole, kind, ignores_unknown_tools=ignores_tools, is_count_only=is_count_only)


def chat(kind: str = "llamacpp", /, **body: Any) -> Json:  # noqa: ANN401
    return read(kind, **body).chat


def messages(*given: Json, kind: str = "llamacpp", **body: Any) -> list[Json]:  # noqa: ANN401
    found: list[Json] = chat(kind, messages=list(given), **body)["messages"]
    return found


def rejection(kind: str = "llamacpp", /, **body: Any) -> ApiError:  # noqa: ANN401
    with pytest.raises(ApiError) as caught:
        read(kind, **body)
    assert caught.value.status == 400
    return caught.value


def test_a_plain_request_is_a_plain_chat() -> None:
    assert chat(system="Be brief.", stream=True, temperature=1, top_p=0.5, top_k=3, stop_sequences=["END", "\n"]) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "max_tokens": 10,
        "stream": True,
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 3,
        "stop": ["END", "\n"],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert read(stop_sequences=["END"]).chat["stop"] == ["END"]
    assert "stop" not in read().chat


def test_max_tokens_is_required_except_for_token_counts() -> None:
    assert rejection(max_tokens=None).param == "max_tokens"
    assert rejection(max_tokens=0).code == "integer_below_min_value"
    assert "max_tokens" not in read(max_tokens=None, is_count_only=True).chat
    assert chat("openai")["max_completion_tokens"] == 10


def test_text_blocks_of_a_turn_are_joined() -> None:
    assert messages(user(text("a"), text(""), text("b"))) == [{"role": "user", "content": "a\nb"}]
    assert messages(user("a"), user(text("b")), assistant("c"), assistant(text("d"), text("e")), user("f")) == [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c\nde"},
        {"role": "user", "content": "f"},
    ]


def test_a_system_prompt_may_consist_of_blocks() -> None:
    blocks = [text("x-anthropic-billing-header: cc_version=2; cch=1a2b3;"), text("You are kind."), text("And brief.")]
    assert messages(user("Hi"), system=blocks)[0] == {"role": "system", "content": "You are kind.\nAnd brief."}
    assert messages(user("Hi"), system="x-anthropic-billing-header: cch=1;\nBe.")[0]["content"] == "Be."
    assert messages(user("Hi"), system=[]) == [{"role": "user", "content": "Hi"}]
    assert rejection(system=[{"type": "image", "source": IMAGE}]).param == "system[0].type"


def test_a_system_message_in_the_middle_becomes_part_of_the_user_turn() -> None:
    given = [user("Hi"), {"role": "system", "content": [text("Be brief.")]}, assistant("Yes?"), user("Go")]
    expected = "Hi\n<system>\nBe brief.\n</system>"
    assert [one["role"] for one in messages(*given)] == ["user", "assistant", "user"]
    assert messages(*given)[0]["content"] == expected
    assert messages(*given, kind="openai")[1] == {"role": "system", "content": "Be brief."}


def test_leading_system_messages_become_the_system_prompt() -> None:
    given = [{"role": "system", "content": "b"}, {"role": "system", "content": "c"}, user("Hi")]
    assert messages(*given, system="a")[0] == {"role": "system", "content": "a\nb\nc"}
    assert rejection(messages=given[:2]).param == "messages"


def test_images_become_content_parts() -> None:
    found = messages(user(text("what?"), {"type": "image", "source": IMAGE}))
    assert found == [{"role": "user", "content": [{"type": "text", "text": "what?"}, URL]}]
    web = messages(user({"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}}))
    assert web[0]["content"] == [{"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}]


def test_text_documents_and_search_results_become_text() -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "once"}
    document = {"type": "document", "source": plain, "title": "Tale", "context": "old", "citations": {"enabled": False}}
    assert messages(user(document))[0]["content"] == "Tale\nold\nonce"
    mixed = {
        "type": "document",
        "source": {"type": "content", "content": [text("a"), {"type": "image", "source": IMAGE}]},
    }
    assert messages(user(mixed))[0]["content"] == [{"type": "text", "text": "a"}, URL]
    found = {"type": "search_result", "title": "T", "source": "https://x.example", "content": [text("a"), text("b")]}
    assert messages(user(found))[0]["content"] == "T\nhttps://x.example\na\nb"


def test_tool_calls_and_results_become_chat_messages() -> None:
    assert messages(
        user("Weather?"), assistant(text("Let me see."), USE), user(text("And?"), result(), text("So?"))
    ) == [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "sunny"},
        {"role": "user", "content": "And?\nSo?"},
    ]


def test_tool_results_follow_their_calls_even_if_the_client_splits_its_turn() -> None:
    found = messages(user("?"), assistant(USE), user("wait"), {"role": "system", "content": "s"}, user(result()))
    assert [one["role"] for one in found] == ["user", "assistant", "tool", "user"]
    assert found[1]["content"] == ""


@table(
    ("block", "expected"),
    [
        (result(None), ""),
        (result([text("a"), text("b")]), "a\nb"),
        (result("boom", is_error=True), "Error: boom"),
        (result("Error: boom", is_error=True), "Error: boom"),
        (result("", is_error=True), "Error: "),
        (result([{"type": "tool_reference", "tool_name": "weather"}]), "weather"),
    ],
)
def test_a_tool_result_becomes_text(block: Json, expected: str) -> None:
    assert messages(assistant(USE), user(block))[1] == {"role": "tool", "tool_call_id": "toolu_1", "content": expected}


def test_an_image_of_a_tool_result_follows_in_a_user_message() -> None:
    found = messages(assistant(USE), user(text("Well?"), result([{"type": "image", "source": IMAGE}])))
    assert "picture" in found[1]["content"]
    label, image, rest = found[2]["content"]
    assert "toolu_1" in label["text"]
    assert (image, rest) == (URL, {"type": "text", "text": "Well?"})


def test_thinking_is_kept_and_redacted_thinking_is_dropped() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    redacted = {"type": "redacted_thinking", "data": "x"}
    found = messages(user("?"), assistant(thinking, redacted, text("A")), user("!"))
    assert found[1] == {"role": "assistant", "content": "A", "reasoning_content": "hm"}


def test_a_final_assistant_message_is_continued() -> None:
    given = [user("?"), assistant("The answer is")]
    assert chat(messages=given)["messages"][-1] == {"role": "assistant", "content": "The answer is"}
    assert "continue_final_message" not in chat(messages=given)
    vllm_chat = chat("vllm", messages=given)
    assert (vllm_chat["continue_final_message"], vllm_chat["add_generation_prompt"]) == (True, False)
    assert "cannot continue" in rejection("openai", messages=given).message
    assert messages(user("?"), assistant()) == [{"role": "user", "content": "?"}]
    assert "results" in rejection(messages=[user("?"), assistant(USE)]).message


@table(
    ("thinking", "expected"),
    [
        (None, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"type": "disabled"}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"type": "enabled", "budget_tokens": 2048}, {"thinking_budget_tokens": 2048}),
        ({"type": "adaptive"}, {}),
    ],
)
def test_thinking_is_translated_for_llama_cpp(thinking: Json | None, expected: Json) -> None:
    found = read(thinking=thinking)
    names = ("chat_template_kwargs", "thinking_budget_tokens", "reasoning_effort")
    assert {name: found.chat[name] for name in names if name in found.chat} == expected
    assert found.shows_reasoning == ("chat_template_kwargs" not in expected)


def test_thinking_is_translated_for_other_servers() -> None:
    assert chat("openai", thinking={"type": "disabled"})["reasoning_effort"] == "none"
    assert "thinking_budget_tokens" not in chat("vllm", thinking={"type": "enabled", "budget_tokens": 2048})
    assert chat("vllm", output_config={"effort": "max"})["reasoning_effort"] == "high"
    assert chat("openai", output_config={"effort": "max"})["reasoning_effort"] == "xhigh"
    assert chat(output_config={"effort": "low"})["reasoning_effort"] == "low"


def test_a_thread_is_rejected_with_the_details_for_tool_runners() -> None:
    error = rejection(thread={"type": "auto"})
    assert error.details == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert json.loads(error.body(ErrorFormat.ANTHROPIC))["error"]["details"] == error.details


def test_tools_become_functions() -> None:
    more = {
        "type": "custom",
        "strict": True,
        "cache_control": {},
        "defer_loading": False,
        "eager_input_streaming": None,
    }
    assert chat(tools=[{**WEATHER, **more}])["tools"] == [
        {"type": "function", "function": {**FUNCTION, "strict": True}}
    ]
    description = chat(tools=[{**WEATHER, "input_examples": [{"city": "Rom"}]}])["tools"][0]["function"]["description"]
    assert description == 'tells it\nExamples of its input: [{"city":"Rom"}]'


@table(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "weather"}, {"tool_choice": {"type": "function", "function": {"name": "weather"}}}),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
)
def test_tool_choice_is_translated(choice: Json, expected: Json) -> None:
    found = chat(tools=[WEATHER], tool_choice=choice)
    assert {name: found[name] for name in ("tool_choice", "parallel_tool_calls") if name in found} == expected


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (SEARCH, "tools[1].type"),
        ({**WEATHER, "allowed_callers": ["code_execution_20250825"]}, "tools[1].allowed_callers"),
    ],
)
def test_server_tools_are_rejected_or_dropped(tool: Json, param: str) -> None:
    assert rejection(tools=[WEATHER, tool]).param == param
    named = {"type": "tool", "name": tool["name"]}
    other = {**WEATHER, "name": "other"}
    assert chat(tools=[tool, other], ignores_tools=True, tool_choice=named)["tool_choice"] == "auto"
    assert len(chat(tools=[tool, WEATHER], ignores_tools=True)["tools"]) == 1
    assert "tools" not in chat(tools=[tool], ignores_tools=True, tool_choice={"type": "auto"})
    assert rejection(tools=[tool], ignores_tools=True, tool_choice={"type": "any"}).param == "tool_choice"


@pytest.mark.parametrize("where", ["output_config", "output_format"])
def test_an_output_schema_becomes_response_format(where: str) -> None:
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    found = chat(**{where: {"format": wanted} if where == "output_config" else wanted})["response_format"]
    assert found == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
    }


def test_only_a_short_user_id_is_forwarded() -> None:
    assert chat(metadata={"user_id": "u" * 64})["user"] == "u" * 64
    assert "user" not in chat(metadata={"user_id": "u" * 65})


def test_fields_without_effect_are_ignored() -> None:
    ignored = {
        row.name: {"x": [1]} for row in describe_fields(AnthropicRequest) if row.handling is FieldHandling.IGNORED
    }
    assert len(ignored) > 5
    assert chat(**ignored) == chat()


@pytest.mark.parametrize(
    "name", [row.name for row in describe_fields(AnthropicRequest) if row.handling is FieldHandling.REJECTED]
)
def test_fields_without_an_equivalent_in_chat_are_rejected(name: str) -> None:
    wanted: list[Json] = [{name: [{"type": "url"}]}, {name: None}, {name: []}]
    assert rejection(**wanted[0]).param == name
    assert chat(**wanted[1]) == chat(**wanted[2]) == chat()


SEARCH_RESULT = {"type": "search_result", "title": "t", "source": "s", "content": []}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "x"}


@table(
    ("given", "param"),
    [
        ([user({"type": "document", "source": PDF})], "messages[0].content[0].source"),
        (
            [user({"type": "document", "source": PDF, "citations": {"enabled": True}})],
            "messages[0].content[0].citations",
        ),
        ([user({**SEARCH_RESULT, "citations": {"enabled": True}})], "messages[0].content[0].citations"),
        ([user({"type": "document", "source": {"type": "file", "file_id": "f"}})], "messages[0].content[0].source"),
        ([user({"type": "image", "source": {"type": "file", "file_id": "f"}})], "messages[0].content[0].source"),
        (
            [user({"type": "image", "source": {**IMAGE, "media_type": "image/tiff"}})],
            "messages[0].content[0].source.media_type",
        ),
        ([user({"type": "image"})], "messages[0].content[0].source"),
        ([user({"type": "image", "source": {}})], "messages[0].content[0].source.type"),
        (
            [user({"type": "image", "source": {"type": "base64", "data": "x"}})],
            "messages[0].content[0].source.media_type",
        ),
        ([user({"type": "container_upload", "file_id": "f"})], "messages[0].content[0].type"),
        ([user("?"), assistant({"type": "server_tool_use", "id": "s"})], "messages[1].content[0].type"),
        ([user("?"), assistant({"type": "tool_use", "id": "s", "name": "n"})], "messages[1].content[0].input"),
        ([user("?"), assistant({"type": "tool_use", "name": "n", "input": {}})], "messages[1].content[0].id"),
        ([user(result(tool_use_id=None))], "messages[0].content[0].tool_use_id"),
        ([user({"type": "text", "text": 1})], "messages[0].content[0].text"),
        ([user({"text": "x"})], "messages[0].content[0].type"),
        ([user(1)], "messages[0].content[0]"),
        ([{"role": "user", "content": 1}], "messages[0].content"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([user("")], "messages[0].content"),
        (["x"], "messages[0]"),
        ([], "messages"),
        ("x", "messages"),
        (None, "messages"),
    ],
)
def test_an_error_in_messages_names_the_parameter(given: Any, param: str) -> None:  # noqa: ANN401
    error = rejection(messages=given)
    assert error.param == param
    assert f"'{param}'" in error.message


@table(
    ("body", "param"),
    [
        ({"temperature": 1.5}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stream": "yes"}, "stream"),
        ({"thinking": {"type": "hard"}}, "thinking.type"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"format": {"schema": {}}}}, "output_config.format.type"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
    ],
)
def test_an_error_in_a_field_names_the_parameter(body: Json, param: str) -> None:
    assert rejection(**body).param == param


def test_a_translated_request_is_valid_for_local_models_and_upstreams() -> None:
    data = base64.b64encode(png(2, 2, (1, 2, 3))).decode()
    conversation = [
        user("Weather?"),
        assistant({"type": "thinking", "thinking": "hm", "signature": ""}, USE),
        user(result([text("sunny"), {"type": "image", "source": {**IMAGE, "data": data}}])),
    ]
    body: Json = {
        "system": [text("Be.")],
        "messages": conversation,
        "tools": [WEATHER],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "stop_sequences": ["END"],
        "stream": True,
    }
    local = read_chat(chat(**body), MODEL, CAPABILITIES)
    assert local.is_stream
    assert local.facts.stop_strings == ("END",)
    assert local.bodies[0]["thinking_budget_tokens"] == 1024
    assert [one["role"] for one in local.bodies[0]["messages"]] == ["system", "user", "assistant", "tool", "user"]
    foreign = read_upstream_request(chat("vllm", **body), "chat", supports_n=True)
    assert json.dumps(foreign.bodies[0]["messages"]).count("image_url") == 2


@table(
    ("body", "names"),
    [
        (
            {"system": "s", "messages": [user("?"), assistant("!"), user({"type": "image", "source": IMAGE})]},
            "messages[2].",
        ),
        ({"tools": [SEARCH, {**WEATHER, "name": "a b"}]}, "tools[1].name"),
        ({"tools": [{**WEATHER, "input_schema": {"type": 5}}]}, "tools[0].input_schema"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": 5}}}}, "output_config.format.schema"),
    ],
)
def test_an_error_names_the_parameter_of_the_client(body: Json, names: str) -> None:
    translation = read(ignores_tools=True, **body)
    with pytest.raises(ApiError) as caught:
        read_chat(translation.chat, MODEL, capabilities_with(images=False))
    rename_error_param(caught.value, translation.param_names)
    assert (caught.value.param or "").startswith(names)
    assert f"'{caught.value.param}'" in caught.value.message


def test_an_error_without_a_parameter_is_unchanged() -> None:
    error = invalid_request("The engine is odd.")
    rename_error_param(error, read().param_names)
    assert (error.message, error.param) == ("The engine is odd.", None)
