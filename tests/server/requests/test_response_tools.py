"""Tools in namespaces of Responses requests: names in the chat, and the calls of later turns."""

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.server.requests.test_responses import OUTPUT, Body, rejection, translated
from tests.table import table
from welldone.server.requests.responses import ResponsesTranslation, flat_name, responses_to_chat

FIND: Body = {"type": "function", "name": "find", "parameters": {"type": "object"}}
PATCH: Body = {"type": "custom", "name": "patch", "description": "p"}
BOTH = (False, True)
FILLED = {"description": None, "strict": False}


def namespace(*tools: Body, name: str = "crm", **more: object) -> Body:
    return {"type": "namespace", "name": name, "tools": list(tools), **more}


def chat_tools(translation: ResponsesTranslation) -> dict[str, Any]:
    """Descriptions of the tools in the chat by name."""
    tools = [tool[tool["type"]] for tool in translation.chat["tools"]]
    return {tool["name"]: tool.get("description") for tool in tools}


def test_tools_of_a_namespace_get_its_name_and_its_description_once() -> None:
    tools = [
        FIND,
        namespace(FIND, {**FIND, "name": "add", "description": "adds"}, description="Customers."),
        namespace({**FIND, "name": "drop", "description": "drops"}, description="Customers."),
        namespace({**FIND, "description": "finds"}, name="mail__", description="Letters."),
        namespace(FIND, name="files"),
    ]
    got = translated(tools=tools)
    assert chat_tools(got) == {
        "find": None,
        "crm__find": "crm: Customers.",
        "crm__add": "adds",
        "crm__drop": "drops",
        "mail__find": "mail__: Letters.\n\nfinds",
        "files__find": None,
    }
    assert got.tools.call_names()["mail__find"] == {"name": "find", "namespace": "mail__"}
    assert "find" not in got.tools.call_names()
    assert got.echo["tools"][0] == FIND | FILLED
    assert got.echo["tools"][4] == namespace(FIND | FILLED, name="files")
    assert got.param_names["tools[2].function"] == "tools[1].tools[1]"


def test_two_tools_never_share_a_name_in_the_chat() -> None:
    tools = [
        namespace({**FIND, "name": "b__c"}, name="a"),
        namespace({**FIND, "name": "c"}, name="a__b"),
        {**FIND, "name": "a__b__c"},
    ]
    got = translated(tools=tools)
    names = list(chat_tools(got))
    assert names[2] == "a__b__c"
    assert len(set(names)) == 3
    assert {tuple(names.values()) for names in got.tools.call_names().values()} == {("b__c", "a"), ("c", "a__b")}
    assert list(chat_tools(translated(tools=tools))) == names


@given(st.from_regex(r"[a-zA-Z0-9_.-]{1,128}", fullmatch=True), st.from_regex(r"[a-zA-Z0-9_.-]{1,128}", fullmatch=True))
def test_a_name_in_the_chat_is_allowed_by_openai(space: str, name: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", flat_name(space, name))


def test_calls_of_earlier_turns_have_the_names_of_the_tools() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}", "namespace": "crm"}
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x", "namespace": "gone"}
    plain = {**call, "call_id": "c3", "namespace": None}
    taken = {**FIND, "name": "crm__find"}
    got = translated(input=[call, custom, plain, OUTPUT], tools=[namespace(FIND), taken])
    calls = got.chat["messages"][0]["tool_calls"]
    given_name = next(iter(got.tools.call_names()))
    assert given_name not in ("find", "crm__find")
    assert [one[one["type"]]["name"] for one in calls] == [given_name, "gone__patch", "find"]


@table(
    ("choice", "expected"),
    [
        ({"type": "function", "name": "add"}, {"type": "function", "function": {"name": "crm__add"}}),
        ({"type": "function", "name": "find"}, {"type": "function", "function": {"name": "find"}}),
        (
            {"type": "function", "name": "find", "namespace": "crm"},
            {"type": "function", "function": {"name": "crm__find"}},
        ),
    ],
)
def test_a_choice_names_a_tool_of_a_namespace(choice: Body, expected: Body) -> None:
    tools = [namespace(FIND, {**FIND, "name": "add"}), FIND]
    got = translated(tools=tools, tool_choice=choice)
    assert got.chat["tool_choice"] == expected
    assert got.echo["tool_choice"] == choice


def test_allowed_tools_of_a_namespace_are_the_only_ones() -> None:
    names = [{"type": "function", "name": "find", "namespace": "crm"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": names}
    got = translated(tools=[FIND, namespace({**FIND, "name": "add"}, FIND, description="d")], tool_choice=choice)
    assert chat_tools(got) == {"crm__find": "crm: d"}
    assert got.chat["tool_choice"] == "required"


@table(
    ("body", "param", "words"),
    [
        ({"tools": [namespace()]}, "tools[0].tools", "empty"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools", "tools"),
        ({"tools": [{"type": "namespace", "tools": [FIND]}]}, "tools[0].name", "name"),
        ({"tools": [namespace(FIND, name="white space")]}, "tools[0].name", "name"),
        ({"tools": [FIND, namespace(FIND, FIND)]}, "tools[1].tools[1].name", "another tool 'find'"),
        ({"tools": [namespace(FIND), namespace(FIND)]}, "tools[1].tools[0].name", "another tool 'find'"),
        ({"tools": [namespace(namespace(FIND))]}, "tools[0].tools[0].type", "cannot contain a namespace"),
        ({"tools": [namespace({"type": "web_search"})]}, "tools[0].tools[0].type", "--unknown-tools ignore"),
        ({"tools": [namespace(PATCH)]}, "tools[0].tools[0].type", "--unknown-tools ignore"),
        ({"tools": [namespace({"type": "function"})]}, "tools[0].tools[0].name", "name"),
        (
            {"tools": [namespace(FIND), *({**FIND, "name": flat_name("crm", "find", is_hashed=it)} for it in BOTH)]},
            "tools[0].tools[0].name",
            "another tool with the name",
        ),
        (
            {"tools": [namespace(*({**FIND, "name": f"{at}"} for at in range(65)), name=name) for name in "ab"]},
            "tools",
            "128",
        ),
        (
            {"tools": [namespace(FIND, name=n) for n in "ab"], "tool_choice": {"type": "function", "name": "find"}},
            "tool_choice.name",
            "Add 'namespace'",
        ),
        (
            {"tools": [namespace(FIND)], "tool_choice": {"type": "function", "name": "find", "namespace": "x"}},
            "tool_choice.name",
            "no tool 'find' in the namespace 'x'",
        ),
    ],
)
def test_an_invalid_namespace_is_an_error(body: Body, param: str, words: str) -> None:
    error = rejection(**body)
    assert error.param == param
    assert words in error.message


def test_unknown_tools_of_a_namespace_are_ignored_if_the_server_is_configured_so() -> None:
    tools = [namespace(PATCH, FIND), namespace({"type": "web_search"}, name="web"), {"type": "web_search"}]
    got = translated(ignores_unknown=True, tools=tools)
    assert list(chat_tools(got)) == ["crm__find"]
    assert got.echo["tools"] == [namespace(FIND | FILLED)]
    assert got.tools.ignored == ("tools[0].tools[0].custom", "tools[1].tools[0].web_search", "tools[2].web_search")
    assert rejection(ignores_unknown=True, tools=[namespace()]).param == "tools[0].tools"


def test_an_upstream_gets_custom_tools_of_a_namespace() -> None:
    body = {"model": "m", "tools": [namespace(PATCH, description="Files.")]}
    got = responses_to_chat(body, [], [], unknown_tools="refuse", allows_custom_tools=True)
    custom = {"name": "crm__patch", "description": "crm: Files.\n\np"}
    assert got.chat["tools"] == [{"type": "custom", "custom": custom}]
