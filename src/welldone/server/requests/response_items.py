"""Items of a Responses request: reading, references to stored items, compaction, and conversion to chat messages.

One turn of a model consists of several items: reasoning, a message, calls. A chat has one assistant message for all of
them, followed by the tool outputs. So consecutive items of the model are merged until an item of another role follows.

A compaction item has the summary of a conversation, encoded but not encrypted: the client has the whole conversation
anyway.
"""

import base64
import binascii
from collections.abc import Callable, Generator
from typing import NamedTuple, TypeAlias

import msgspec

from welldone.core.events import Json
from welldone.core.json_budget import decode_unlimited_in_steps
from welldone.core.lenient_json import as_list, as_object
from welldone.gateway.errors import ApiError, invalid_request
from welldone.schemas import responses as schema
from welldone.schemas.errors import shorten_value, string_or_type_name
from welldone.schemas.messages import RefusalPart
from welldone.server.requests import fields

SUMMARY_TOKENS = 2_048
"""Limit of a summary, with the reasoning before it: a model that repeats itself would fill its context otherwise."""
COMPACTION = "compaction"
"""Type of the item."""
_PREFIX = "wdc1_"
_DEFAULT_INSTRUCTIONS = (
    "You summarize conversations so that another assistant can continue them from the summary alone. Keep goals, "
    "decisions, facts, names, numbers, results of tool calls and open tasks."
)
_REQUEST = "Write the summary of this conversation. Reply with the summary only."
_SUMMARY_HEADING = "Summary of the conversation so far:"


def summary_messages(messages: list[Json], instructions: str | None) -> list[Json]:
    """Return the chat that asks a model for the summary of these chat messages.

    The conversation is quoted in one message: every chat template accepts that, also without support for tools.
    """
    transcript = "\n\n".join(f"[{message['role']}]\n{_message_text(message)}" for message in messages)
    return [
        {"role": "system", "content": instructions or _DEFAULT_INSTRUCTIONS},
        {"role": "user", "content": f"<conversation>\n{transcript}\n</conversation>\n\n{_REQUEST}"},
    ]


def summary_text(response: Json) -> str:
    """Return the text of a Response."""
    parts = [content_part for item in response["output"] for content_part in item.get("content", ())]
    return "".join(content_part["text"] for content_part in parts if content_part["type"] == "output_text").strip()


def encode_summary(summary: str) -> str:
    """Return the `encrypted_content` of a compaction item."""
    return _PREFIX + base64.urlsafe_b64encode(summary.encode()).decode()


def decode_summary(content: object) -> str | None:
    """Return what a compaction item of ours tells the model; None for the content of another server."""
    if not isinstance(content, str) or not content.startswith(_PREFIX):
        return None
    try:
        summary = base64.b64decode(content.removeprefix(_PREFIX), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        return None
    return f"{_SUMMARY_HEADING}\n{summary}"


def replace_own_summaries(body: Json) -> Json:
    """Return a body in which messages replace the compaction items of ours, for an upstream that cannot read them."""
    items = body.get("input")
    if not isinstance(items, list) or not any(_own_summary(item) for item in items):
        return body
    return {**body, "input": [_summary_item(text) if (text := _own_summary(item)) else item for item in items]}


def _own_summary(item: object) -> str | None:
    members = as_object(item)
    return decode_summary(members.get("encrypted_content")) if members.get("type") == COMPACTION else None


def _summary_item(text: str) -> Json:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def _message_text(message: Json) -> str:
    content = message.get("content")
    texts = [content] if isinstance(content, str) else [_part_text(as_object(element)) for element in as_list(content)]
    for tool_call in message.get("tool_calls") or ():
        called = tool_call[tool_call["type"]]
        texts.append(f"called {called['name']} with {called.get('arguments', called.get('input'))}")
    return "\n".join([*texts, message["refusal"]] if message.get("refusal") else texts)


def _part_text(content_part: Json) -> str:
    text = content_part.get("text")
    return text if isinstance(text, str) else f"({content_part.get('type')})"


REFERENCES_LIMIT = 1_024
"""References to stored items in one request: each is looked up and decoded."""

ItemLookup: TypeAlias = Callable[[str], bytes | None]
"""Returns a stored item by its id, as JSON."""
ToolNaming: TypeAlias = Callable[[str, str], str]
"""Returns the name that a tool of a namespace has in a chat."""

_ITEM_REFERENCE = "item_reference"
_ID_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    COMPACTION: "cmp",
}


def read_input_items(body: Json, lookup: ItemLookup, limit_bytes: int) -> Generator[None, None, list[Json]]:
    """Read the items of `input`, and resolve references, which may have `limit_bytes` in total.

    Yields between slow steps, so that the event loop can run.

    Raises:
        ApiError: `input` is neither a string nor an array of objects, or a referenced item does not exist.
    """
    value = body.get("input")
    if value is None and body.get("previous_response_id") is not None:
        return []
    if value is None:
        raise fields.missing("input")
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise fields.wrong_type("input", "a string or an array of objects", value)
    if len(value) > schema.ITEMS_LIMIT:
        raise fields.too_many("input", schema.ITEMS_LIMIT, len(value))
    items: list[Json] = []
    references, remaining_bytes = 0, limit_bytes
    for index, item in enumerate(value):
        param = f"input[{index}]"
        if not isinstance(item, dict):
            raise fields.wrong_type(param, "an object", item)
        if not isinstance(item.get("id"), str | None):
            raise fields.wrong_type(f"{param}.id", "a string", item["id"])
        if item_type(item) != _ITEM_REFERENCE:
            items.append(item)
            continue
        item_id = fields.read_fields(item, schema.ItemReference, f"{param}.").id
        if (data := lookup(item_id)) is None:
            raise item_not_found(item_id, param)
        references += 1
        remaining_bytes -= len(data)
        if references > REFERENCES_LIMIT:
            reason = f"too many item references. Expected at most {REFERENCES_LIMIT} in one request."
            raise fields.invalid("input", reason, "array_above_max_length")
        if remaining_bytes < 0:
            message = f"The referenced items have more than {limit_bytes} bytes, the size limit of a request."
            raise invalid_request(message, param=param, code="context_length_exceeded")
        yield
        items.append((yield from decode_unlimited_in_steps(data)))  # type: ignore[arg-type]  # encoded from an object
    return items


def raw_input_items(body: Json) -> list[Json]:
    """Return the items of `input` unchanged, for an upstream that validates them itself."""
    value = body.get("input")
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def item_type(item: Json) -> object:
    """Return the type of an item, inferred from its other fields if the client omits it."""
    declared_type = item.get("type")
    if declared_type is not None:
        return declared_type
    return "message" if "role" in item else _ITEM_REFERENCE if item.keys() == {"id"} else None


def complete_item(item: Json, suffix: str) -> Json:
    """Return an item as it is stored and listed: with type, status and an id that ends with `suffix`."""
    type_name = string_or_type_name(item_type(item))
    out: Json = {"id": f"{_ID_PREFIXES.get(type_name, 'item')}_{suffix}", "type": type_name, "status": "completed"}
    out |= {key: value for key, value in item.items() if value is not None}
    content = item.get("content")
    if type_name == "message" and isinstance(content, str):
        output_part: Json = {"type": "output_text", "text": content, "annotations": []}
        input_part: Json = {"type": "input_text", "text": content}
        out["content"] = [output_part if item.get("role") == "assistant" else input_part]
    return out


def is_user_message(item: Json) -> bool:
    """Whether an item is a message of the user."""
    return item_type(item) == "message" and item.get("role") == "user"


class ConvertedMessage(NamedTuple):
    """A chat message, and the client's names for it and for its fields."""

    value: Json
    param_names: dict[str, str]


def items_to_messages(items: list[tuple[Json, str]], chat_name: ToolNaming) -> list[ConvertedMessage]:
    """Convert items to chat messages. Each item comes with its parameter name for errors.

    `chat_name` names the tools in a chat that have a namespace.

    Raises:
        ApiError: an item is invalid, or has no equivalent in a chat.
    """
    chat = _ChatBuilder(chat_name)
    for item, param in items:
        chat.add_item(item, param)
    chat.close_turn()
    return chat.messages


class _AssistantTurn(msgspec.Struct):
    """Consecutive items of the model, which become one message."""

    reasoning: list[str] = []
    texts: list[str] = []
    refusals: list[str] = []
    calls: list[Json] = []
    param: str = ""
    """Parameter name of its first item."""
    call_params: list[str] = []


class _ChatBuilder:
    def __init__(self, chat_name: ToolNaming) -> None:
        self.messages: list[ConvertedMessage] = []
        self._chat_name = chat_name
        self._turn = _AssistantTurn()
        self._call_ids: set[str] = set()

    def add_item(self, item: Json, param: str) -> None:
        typed = fields.read_fields(item, _item_schema(item, param), f"{param}.")
        match typed:
            case schema.FunctionCallItem():
                self._add_call(typed, "function", {"arguments": typed.arguments}, param)
            case schema.CustomCallItem():
                self._add_call(typed, "custom", {"input": typed.input}, param)
            case schema.FunctionOutputItem():  # or of a custom tool
                if typed.call_id not in self._call_ids:
                    reason = f"No tool call found for function call output with call_id {shorten_value(typed.call_id)}."
                    raise invalid_request(reason, param=f"{param}.call_id")
                content = _message_content(typed.output, f"{param}.output")
                message = {"role": "tool", "tool_call_id": typed.call_id, "content": content}
                names = {"": param, ".content": f"{param}.output", ".tool_call_id": f"{param}.call_id"}
                self._add_message(message, names)
            case schema.ReasoningItem():
                self._add_reasoning(typed)
            case schema.CompactionItem():
                self._add_summary(typed, param)
            case schema.AssistantItem():
                self._add_assistant_message(typed, param)
            case schema.UserItem():
                content = _message_content(typed.content, f"{param}.content")
                self._add_message({"role": "user", "content": content}, {"": param})
            case _:  # not every server has the developer role
                assert isinstance(typed, schema.SystemItem)
                text = typed.content
                if not isinstance(text, str):
                    text = "\n".join(content_part.text for content_part in text)
                self._add_message({"role": "system", "content": text}, {"": param})

    def close_turn(self) -> None:
        """Add the message of the turn, unless the turn has only reasoning."""
        turn, self._turn = self._turn, _AssistantTurn()
        if not (turn.texts or turn.refusals or turn.calls):
            return
        out: Json = {"role": "assistant", "content": "\n".join(turn.texts) if turn.texts else None}
        if turn.refusals:
            out["refusal"] = "\n".join(turn.refusals)
        if turn.reasoning:
            out["reasoning_content"] = "\n\n".join(turn.reasoning)
        if turn.calls:
            out["tool_calls"] = turn.calls
        calls = {f".tool_calls[{index}]": param for index, param in enumerate(turn.call_params)}
        functions = {f"{name}.function": param for name, param in calls.items()}
        self.messages.append(ConvertedMessage(out, {"": turn.param, **calls, **functions}))

    def _start_text(self) -> None:
        """Close the turn if it has text: a second text starts a message, unless calls await their outputs."""
        if not self._turn.calls and (self._turn.texts or self._turn.refusals):
            self.close_turn()

    def _add_message(self, message: Json, param_names: dict[str, str]) -> None:
        self.close_turn()
        self.messages.append(ConvertedMessage(message, param_names))

    def _add_call(
        self, item: schema.FunctionCallItem | schema.CustomCallItem, call_type: str, call_input: Json, param: str
    ) -> None:
        self._call_ids.add(item.call_id)
        name = self._chat_name(item.namespace, item.name) if item.namespace else item.name
        self._turn.calls.append({"id": item.call_id, "type": call_type, call_type: {"name": name} | call_input})
        self._turn.call_params.append(param)
        self._turn.param = self._turn.param or param

    def _add_assistant_message(self, item: schema.AssistantItem, param: str) -> None:
        self._start_text()
        self._turn.param = self._turn.param or param
        for content_part in [schema.OutputTextPart(item.content)] if isinstance(item.content, str) else item.content:
            if isinstance(content_part, RefusalPart):
                self._turn.refusals.append(content_part.refusal)
            else:
                self._turn.texts.append(content_part.text)

    def _add_reasoning(self, item: schema.ReasoningItem) -> None:
        """Add reasoning to the turn that follows it. Encrypted reasoning is dropped."""
        self._start_text()
        for parts in (item.content, item.summary):
            texts = [content_part.text for content_part in parts or ()]
            if any(texts):
                self._turn.reasoning.append("\n\n".join(texts))
                return

    def _add_summary(self, item: schema.CompactionItem, param: str) -> None:
        """Add a summary as a message of the model, after one message with all texts of the user before it.

        So the roles alternate, which some chat templates require.
        """
        summary = decode_summary(item.encrypted_content)
        if summary is None:
            reason = "it is not from this server. Only the server that created a compaction item can read it."
            raise fields.invalid(f"{param}.encrypted_content", reason)
        self.close_turn()
        texts: list[str] = []
        names = {"": param}
        while self.messages and _is_user_text(self.messages[-1].value):
            message, names = self.messages.pop()
            texts.insert(0, message["content"])
        if texts:
            self._add_message({"role": "user", "content": "\n\n".join(texts)}, names)
        role = "assistant" if self.messages and self.messages[-1].value["role"] != "system" else "user"
        self._add_message({"role": role, "content": summary}, {"": param})


def _is_user_text(message: Json) -> bool:
    return message["role"] == "user" and isinstance(message["content"], str)


def _item_schema(item: Json, param: str) -> type[msgspec.Struct]:
    tag, schemas, allowed, name = item_type(item), schema.ITEMS, ("message", *schema.ITEMS, _ITEM_REFERENCE), "type"
    if tag == "message":
        tag, schemas, allowed, name = item.get("role"), schema.MESSAGE_ITEMS, tuple(schema.MESSAGE_ITEMS), "role"
    if tag is None:
        raise fields.missing(f"{param}.{name}")
    if not isinstance(tag, str) or tag not in schemas:
        raise fields.wrong_value(f"{param}.{name}", tag, allowed)
    return schemas[tag]


def _message_content(content: str | list[schema.InputPart], param: str) -> str | list[Json]:
    if isinstance(content, str):
        return content
    if len(content) == 1 and isinstance(content[0], schema.InputTextPart | schema.OutputTextPart):
        return content[0].text
    return [_chat_part(element, f"{param}[{index}]") for index, element in enumerate(content)]


def _chat_part(element: schema.InputPart, param: str) -> Json:
    match element:
        case schema.InputTextPart() | schema.OutputTextPart():
            return {"type": "text", "text": element.text}
        case schema.InputAudioPart():
            return {"type": "input_audio", "input_audio": element.input_audio}
        case schema.InputImagePart():
            if element.image_url is None and element.file_id is not None:
                raise fields.unsupported(f"{param}.file_id", "is not supported: send the image as 'image_url'.")
            if element.image_url is None:
                raise fields.missing(f"{param}.image_url")
            return {"type": "image_url", "image_url": fields.given(url=element.image_url, detail=element.detail)}
        case schema.InputFilePart():
            if element.file_url is not None:
                raise fields.unsupported(f"{param}.file_url", "is not supported: send the file as 'file_data'.")
            file = fields.given(file_data=element.file_data, file_id=element.file_id, filename=element.filename)
            return {"type": "file", "file": file}


def item_not_found(item_id: str, param: str) -> ApiError:
    """Return the error for an id that is not an item of this client."""
    message = (
        f"Item with id '{shorten_value(item_id)}' not found. Items of stored responses are kept in memory for a "
        "limited time. Send the item itself."
    )
    return invalid_request(message, param=param, code="item_not_found")
