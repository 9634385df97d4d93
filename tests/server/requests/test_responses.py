"""Translation of Responses requests into chat requests."""

from typing import Any

import msgspec
import pytest

from tests.server.requests.builders import MODEL, capabilities_with
from tests.table import table
from welldone.core.json_budget import run_to_completion
from welldone.gateway.errors import ApiError
from welldone.server.requests.chat import read_chat
from welldone.server.requests.fields import rename_error_param
from welldone.server.requests.response_items import (
    REFERENCES_LIMIT,
    complete_item,
    encode_summary,
    items_to_messages,
    raw_input_items,
    read_input_items,
    replace_own_summaries,
)
from welldone.server.requests.responses import (
    ResponsesTranslation,
    compaction_chat,
    echoed_fields,
    flat_name,
    read_storage_options,
    responses_to_chat,
)

Body = dict[str, Any]

CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "4"}
TOOL: Body = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
CHAT_TOOL = {"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def translated(
    *,
    history: tuple[Body, ...] = (),
    ignores_unknown: bool = False,
    **body: Any,  # noqa: ANN401 - each field its own
) -> ResponsesTranslation:
    given = {"model": "m", "input": "hi", **body}
    kept = {"msg_9": b'{"role": "assistant", "content": "kept"}'}
    items = run_to_completion(read_input_items(given, kept.get, 10**6))
    return responses_to_chat(given, list(history), items, unknown_tools="ignore" if ignores_unknown else "refuse")


def messages(*items: Body, **body: Any) -> list[Body]:  # noqa: ANN401 - each field its own
    found: list[Body] = translated(input=list(items), **body).chat["messages"]
    return found


def rejection(**body: Any) -> ApiError:  # noqa: ANN401 - each field its own
    with pytest.raises(ApiError) as caught:
        translated(**body)
    assert caught.value.status == 400
    return caught.value


def test_a_string_becomes_a_user_message() -> None:
    assert translated().chat == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@table(
    ("item", "message"),
    [
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a"}),
        (
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"role": "user", "content": "a"},
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "a"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
                    {"type": "input_image", "image_url": "http://x/y.png"},
                    {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
                    {"type": "input_file", "file_data": "AA", "filename": "a.pdf"},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
                    {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
                    {"type": "file", "file": {"file_data": "AA", "filename": "a.pdf"}},
                ],
            },
        ),
        ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a"}),
        (
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "a", "annotations": []},
                    {"type": "output_text", "text": "b"},
                ],
            },
            {"role": "assistant", "content": "a\nb"},
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": None, "refusal": "no"},
        ),
        ({"role": "developer", "content": "a"}, {"role": "system", "content": "a"}),
        (
            {"role": "system", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"role": "system", "content": "a\nb"},
        ),
        (CALL, {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}),
        ({"type": "item_reference", "id": "msg_9"}, {"role": "assistant", "content": "kept"}),
        ({"id": "msg_9"}, {"role": "assistant", "content": "kept"}),
    ],
)
def test_an_item_becomes_a_message(item: Body, message: Body) -> None:
    assert messages(item) == [message]


@table("output", ["4", [{"type": "input_text", "text": "4"}]])
def test_the_output_of_a_call_becomes_a_tool_message(output: object) -> None:
    assert messages(CALL, {**OUTPUT, "output": output})[1:] == [{"role": "tool", "tool_call_id": "c1", "content": "4"}]


@table("items", [[OUTPUT], [OUTPUT, CALL], [CALL, {**OUTPUT, "call_id": "c2"}]])
def test_an_output_without_its_call_is_rejected(items: list[Body]) -> None:
    with pytest.raises(ApiError, match="No tool call found for function call output") as caught:
        messages(*items)
    assert caught.value.status == 400
    assert str(caught.value.param).endswith(".call_id")


ASKED = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
NOTED = {"type": "compaction", "id": "cmp_1", "encrypted_content": encode_summary("It rains.")}
SUMMARY = "Summary of the conversation so far:\nIt rains."


@table(
    ("items", "expected"),
    [
        ([NOTED], [{"role": "user", "content": SUMMARY}]),
        (
            [{"role": "system", "content": "s"}, NOTED],
            [{"role": "system", "content": "s"}, {"role": "user", "content": SUMMARY}],
        ),
        (
            [*ASKED, NOTED, {"role": "user", "content": "c"}],
            [
                {"role": "user", "content": "a\n\nb"},
                {"role": "assistant", "content": SUMMARY},
                {"role": "user", "content": "c"},
            ],
        ),
        (
            [{"role": "assistant", "content": "x"}, NOTED],
            [{"role": "assistant", "content": "x"}, {"role": "assistant", "content": SUMMARY}],
        ),
    ],
)
def test_a_compaction_item_becomes_a_message_in_alternating_roles(items: list[Body], expected: list[Body]) -> None:
    assert messages(*items) == expected


@table("content", ["", "gAAAAABpM0Yj", "wdc1_!", "wdc1_/w==", "wdc1_gA==", "wdc1_a"])
def test_the_compaction_item_of_another_server_is_rejected(content: str) -> None:
    with pytest.raises(ApiError, match="it is not from this server") as caught:
        messages({"type": "compaction", "encrypted_content": content})
    assert caught.value.param == "input[0].encrypted_content"


def test_the_summary_of_a_conversation_is_requested_in_one_message() -> None:
    picture = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "data:image/png;base64,AA"}]
    items: list[Body] = [
        {"role": "user", "content": picture},
        CALL,
        OUTPUT,
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]
    chat = compaction_chat([{"role": "system", "content": "s"}], items, None)
    system, user = chat["messages"]
    assert system["role"] == "system"
    assert user["content"].startswith(
        "<conversation>\n[system]\ns\n\n[user]\nsee\n(image_url)\n\n[assistant]\ncalled f with "
    )
    assert "[tool]\n4\n\n[assistant]\nno\n</conversation>" in user["content"]
    assert chat["stream"] is False
    assert compaction_chat([], items, "In Norwegian.")["messages"][0]["content"] == "In Norwegian."
    with pytest.raises(ApiError) as caught:
        compaction_chat([], [], None)
    assert caught.value.param == "input"


def test_an_upstream_gets_messages_instead_of_our_compaction_items() -> None:
    foreign = {"type": "compaction", "encrypted_content": "gAAAA"}
    body = {"input": [*ASKED, NOTED, foreign, 5]}
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": SUMMARY}]}
    assert replace_own_summaries(body) == {"input": [*ASKED, message, foreign, 5]}
    for other in ({"input": "a"}, {"input": [foreign]}, {}):
        assert replace_own_summaries(other) is other


def test_the_items_of_a_turn_become_one_message() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    message = {"role": "assistant", "content": "let me see"}
    second = {**CALL, "call_id": "c2"}
    got = messages(
        {"role": "user", "content": "q"}, reasoning, message, CALL, second, OUTPUT, {**OUTPUT, "call_id": "c2"}
    )
    assert [message["role"] for message in got] == ["user", "assistant", "tool", "tool"]
    assert got[1] == {
        "role": "assistant",
        "content": "let me see",
        "reasoning_content": "hm",
        "tool_calls": [CHAT_CALL, {**CHAT_CALL, "id": "c2"}],
    }


def test_tool_outputs_follow_their_calls_directly() -> None:
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    first, second = ({"role": "assistant", "content": text} for text in ("let me see", "wait"))
    got = messages(first, CALL, second, reasoning, OUTPUT)
    assert got[0] == {
        "role": "assistant",
        "content": "let me see\nwait",
        "reasoning_content": "hm",
        "tool_calls": [CHAT_CALL],
    }
    assert [message["role"] for message in got] == ["assistant", "tool"]


def test_two_assistant_messages_stay_two() -> None:
    got = messages({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"})
    assert [message["content"] for message in got] == ["a", "b"]


def test_reasoning_after_text_belongs_to_the_next_message() -> None:
    reasoning = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    got = messages({"role": "assistant", "content": "a"}, reasoning, {"role": "assistant", "content": "b"})
    assert got == [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm"},
    ]


@pytest.mark.parametrize(
    "reasoning",
    [
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "nothing followed"}]},
    ],
)
def test_encrypted_or_trailing_reasoning_is_dropped(reasoning: Body) -> None:
    assert messages(reasoning, {"role": "user", "content": "q"}) == [{"role": "user", "content": "q"}]


def test_reasoning_content_is_preferred_to_its_summary() -> None:
    reasoning = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "short"}],
        "content": [{"type": "reasoning_text", "text": "long"}],
    }
    assert messages(reasoning, CALL)[0]["reasoning_content"] == "long"


def test_instructions_and_leading_system_messages_are_merged() -> None:
    developer = {"role": "developer", "content": "b"}
    got = messages(developer, {"role": "user", "content": "q"}, developer, instructions="a")
    assert [(message["role"], message["content"]) for message in got] == [
        ("system", "a\n\nb"),
        ("user", "q"),
        ("system", "b"),
    ]


def test_history_comes_first_without_its_instructions() -> None:
    history = ({"role": "user", "content": "q"}, CALL)
    got = translated(history=history, input=[OUTPUT], instructions="new", previous_response_id="resp_1").chat[
        "messages"
    ]
    assert [message["role"] for message in got] == ["system", "user", "assistant", "tool"]


def test_input_is_optional_with_history() -> None:
    got = translated(history=({"role": "user", "content": "q"},), input=None, previous_response_id="resp_1")
    assert got.chat["messages"] == [{"role": "user", "content": "q"}]


@table(
    ("value", "param"),
    [
        (None, "input"),
        (5, "input"),
        (["x"], "input[0]"),
        ([{"type": "web_search_call", "id": "ws_1"}], "input[0].type"),
        ([{"type": 7}], "input[0].type"),
        ([{}], "input[0].type"),
        ([{"role": "tool", "content": "x"}], "input[0].role"),
        ([{"type": "message", "content": "x"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": 5}], "input[0].content"),
        ([{"role": "user", "content": ["x"]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": [{"type": 5}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": [{"text": "x"}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "input_text", "text": 5}]}], "input[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}], "input[0].content[0].file_id"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "input[0].content[0].image_url"),
        ([{"role": "user", "content": [{"type": "input_file", "file_url": "u"}]}], "input[0].content[0].file_url"),
        ([{"role": "assistant", "content": [{"type": "input_image"}]}], "input[0].content[0].type"),
        ([{"role": "system", "content": [{"type": "input_image"}]}], "input[0].content[0].type"),
        ([{**CALL, "call_id": None}], "input[0].call_id"),
        ([{**CALL, "name": None}], "input[0].name"),
        ([{**CALL, "arguments": {}}], "input[0].arguments"),
        ([{**OUTPUT, "output": None}], "input[0].output"),
        ([{"type": "reasoning", "summary": 5}], "input[0].summary"),
        ([{"type": "item_reference", "id": "msg_gone"}], "input[0]"),
        ([{"type": "item_reference"}], "input[0].id"),
        ([{"role": "user", "content": "x"}] * 16_385, "input"),
    ],
)
def test_an_unsupported_input_item_is_named(value: object, param: str) -> None:
    assert rejection(input=value).param == param


def test_an_unsupported_item_of_an_earlier_response_is_rejected() -> None:
    error = rejection(history=({"type": "web_search_call", "id": "ws"},), previous_response_id="resp_1")
    assert error.param == "previous_response_id.type"
    assert "web_search_call" in error.message


@table(
    ("body", "chat"),
    [
        ({"max_output_tokens": 5}, {"max_completion_tokens": 5}),
        ({"temperature": 0.5, "top_p": 0.1}, {"temperature": 0.5, "top_p": 0.1}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": None}}, {}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"verbosity": "low"}}, {"verbosity": "low"}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {
                "text": {
                    "format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True, "description": None}
                }
            },
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}}},
        ),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"include": ["reasoning.encrypted_content"], "top_logprobs": 2}, {}),
        ({"tools": [TOOL]}, {"tools": [CHAT_TOOL]}),
        (
            {"tools": [{"type": "function", "name": "g", "strict": None}]},
            {"tools": [{"type": "function", "function": {"name": "g"}}]},
        ),
        ({"tools": [TOOL], "tool_choice": "required"}, {"tools": [CHAT_TOOL], "tool_choice": "required"}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}},
            {"tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        (
            {
                "tools": [TOOL, {**TOOL, "name": "g"}],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "f"}],
                },
            },
            {"tools": [CHAT_TOOL], "tool_choice": "required"},
        ),
        ({"tools": [TOOL], "parallel_tool_calls": False}, {"tools": [CHAT_TOOL], "parallel_tool_calls": False}),
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, {}),
        ({"stream": True, "stream_options": {"include_obfuscation": False}}, {"stream": True}),
        ({"store": False, "metadata": {"a": "b"}, "truncation": "auto", "max_tool_calls": 3, "n": 1}, {}),
        ({"user": "u", "prompt_cache_key": "k", "service_tier": "auto"},) * 2,
        ({"top_k": 5, "min_p": 0.1, "seed": 1, "stop": ["x"], "chat_template_kwargs": {"a": 1}},) * 2,
    ],
)
def test_a_field_is_translated_to_chat(body: Body, chat: Body) -> None:
    plain = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert translated(**body).chat == {**plain, **chat}


@table(
    ("body", "param"),
    [
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 2}, "n"),
        ({"instructions": ["x"]}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": ["everything"]}, "include[0]"),
        ({"text": "json"}, "text"),
        ({"text": {"format": {}}}, "text.format.type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"truncation": "some"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {"a" * 65: "x"}}, "metadata"),
        ({"user": 5}, "user"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name"),
        ({"tools": [TOOL, {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [{"type": "custom", "name": "apply_patch"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice.type"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [5]}}, "tool_choice.tools[0]"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [{"name": "f"}]}}, "tool_choice.tools[0].name"),
    ],
)
def test_an_error_names_the_field_of_responses(body: Body, param: str) -> None:
    assert rejection(**body).param == param


def test_unknown_tools_are_ignored_if_the_server_is_configured_so() -> None:
    got = translated(ignores_unknown=True, tools=[{"type": "web_search"}, TOOL, {"type": "custom", "name": "x"}])
    assert got.chat["tools"] == [CHAT_TOOL]
    assert got.echo["tools"] == [TOOL]
    assert "tools" not in translated(ignores_unknown=True, tools=[{"type": "web_search"}], tool_choice="auto").chat


def test_the_response_echoes_the_request() -> None:
    body: Body = {
        "instructions": "i",
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "max_output_tokens": 5,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "previous_response_id": "resp_1",
        "tool_choice": "auto",
        "user": "u",
    }
    echo = translated(
        **body, tools=[{"type": "function", "name": "g"}], text={"verbosity": "low"}, reasoning={"effort": "low"}
    ).echo
    assert echo.items() >= body.items()
    assert echo["tools"] == [
        {"type": "function", "name": "g", "description": None, "parameters": None, "strict": False}
    ]
    assert echo["text"] == {"verbosity": "low", "format": {"type": "text"}}
    assert echo["reasoning"] == {"effort": "low", "summary": None}
    assert "input" not in echo


def test_empty_fields_are_not_echoed() -> None:
    assert echoed_fields({"instructions": "", "user": None, "temperature": 0}) == {"temperature": 0}


@table(
    ("reasoning", "is_summary"),
    [({}, False), ({"summary": "auto"}, True), ({"generate_summary": "concise"}, True), ({"summary": None}, False)],
)
def test_reasoning_is_sent_as_a_summary_on_request(reasoning: Body, is_summary: bool) -> None:
    assert translated(reasoning=reasoning).wants_summary is is_summary


def test_storage_options_are_read() -> None:
    keeping = read_storage_options({"previous_response_id": "", "background": True, "stream": True})
    assert (keeping.previous_response_id, keeping.store) == (None, True)
    assert (keeping.background, keeping.stream) == (True, True)
    assert not read_storage_options({"store": False}).store


@table(
    ("body", "param"),
    [
        ({"background": True, "store": False}, "background"),
        ({"store": "yes"}, "store"),
        ({"previous_response_id": 5}, "previous_response_id"),
    ],
)
def test_contradictory_storage_options_are_rejected(body: Body, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_storage_options(body)
    assert caught.value.param == param


def test_items_are_stored_in_full() -> None:
    own: Body = {"type": "message", "id": "msg_own", "role": "user", "content": [{"type": "input_text", "text": "c"}]}
    items: list[Body] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, own, CALL, OUTPUT]
    full = [complete_item(item, f"ab_in{index}") for index, item in enumerate(items)]
    assert full == [
        {
            "id": "msg_ab_in0",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}],
        },
        {
            "id": "msg_ab_in1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "b", "annotations": []}],
        },
        {**own, "status": "completed"},
        {**CALL, "status": "completed"},
        {**OUTPUT, "id": "fco_ab_in4", "status": "completed"},
    ]
    messages_of_full, messages_of_items = (
        items_to_messages([(item, "x") for item in given], flat_name) for given in (full, items)
    )
    assert messages_of_full == messages_of_items


@table(
    ("value", "items"),
    [("a", [{"role": "user", "content": "a"}]), ([CALL, 5], [CALL]), (5, []), (None, [])],
)
def test_raw_items_are_unchanged(value: object, items: list[Body]) -> None:
    assert raw_input_items({"input": value}) == items


def test_a_long_translated_request_is_valid_for_a_local_model() -> None:
    got = translated(
        input=[{"role": "developer", "content": "d"}, {"role": "user", "content": "q"}, CALL, OUTPUT],
        instructions="i",
        tools=[TOOL],
        tool_choice="auto",
        text={"format": {"type": "text"}, "verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto"},
        max_output_tokens=5,
        metadata={"a": "b"},
        service_tier="auto",
        store=True,
        stream=True,
    )
    (part,) = read_chat(got.chat, MODEL, capabilities_with()).bodies
    assert [message["role"] for message in part["messages"]] == ["system", "user", "assistant", "tool"]
    assert part["max_tokens"] == 5


PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}


@table(
    ("body", "name"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": "a"}, {"role": "user", "content": [PICTURE]}]}, "input[1].content[0]"),
        ({"instructions": "s", "input": [CALL, {**CALL, "arguments": "no"}, OUTPUT]}, "input[1].arguments"),
        ({"input": [CALL, {**OUTPUT, "output": [PICTURE]}]}, "input[1].output[0].type"),
        ({"tools": [{"type": "web_search"}, {**TOOL, "parameters": {"type": 5}}]}, "tools[1].parameters"),
        ({"tools": [TOOL, {**TOOL, "name": "g", "description": 5}]}, "tools[1].description"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": 5}}}}, "text.format.schema"),
        ({"reasoning": {"effort": "x" * 64}}, "reasoning.effort"),
    ],
)
def test_an_error_names_the_parameter_of_the_client(body: Body, name: str) -> None:
    translation = translated(ignores_unknown=True, **body)
    with pytest.raises(ApiError) as caught:
        read_chat(translation.chat, MODEL, capabilities_with(images=False))
    rename_error_param(caught.value, translation.param_names)
    assert caught.value.param == name
    assert f"'{name}'" in caught.value.message


@pytest.mark.parametrize("item", [{"role": "user", "content": "a", "id": 5}, {"id": ["x"], **OUTPUT}])
def test_an_item_id_must_be_a_string(item: Body) -> None:
    assert rejection(input=[item]).param == "input[0].id"


def test_item_references_are_limited() -> None:
    given = {"input": [{"type": "item_reference", "id": "msg_9"}] * REFERENCES_LIMIT}
    kept = {"msg_9": b'{"role":"user","content":"kept"}'}
    assert len(run_to_completion(read_input_items(given, kept.get, 10**6))) == REFERENCES_LIMIT
    given["input"].append({"id": "msg_9"})
    with pytest.raises(ApiError, match="too many item references") as caught:
        run_to_completion(read_input_items(given, kept.get, 10**6))
    assert caught.value.status == 400


def test_the_size_of_referenced_items_is_limited() -> None:
    given = {"input": [{"type": "item_reference", "id": "msg_9"}] * 11}
    kept = {"msg_9": msgspec.json.encode({"role": "user", "content": "x" * 1_000})}
    with pytest.raises(ApiError, match="have more than 10000 bytes") as caught:
        run_to_completion(read_input_items(given, kept.get, 10_000))
    assert (caught.value.status, caught.value.param) == (400, "input[9]")
