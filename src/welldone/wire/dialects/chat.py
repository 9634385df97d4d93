"""The dialect of /v1/chat/completions: events as its stream, and as its whole reply."""

from typing import ClassVar, assert_never

import msgspec

from welldone.wire import automaton
from welldone.wire.asked import Asked
from welldone.wire.automaton import ChoiceTable
from welldone.wire.collect import Answer, Call, Reply
from welldone.wire.counts import usage_object
from welldone.wire.dialects.dialect import Counted, Dialect
from welldone.wire.dialects.stream import Spoken, StreamWriter, error_end, escape
from welldone.wire.events import (
    CALL_MEMBERS,
    Failure,
    Finish,
    Json,
    Opening,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
)
from welldone.wire.head import WHOLE_OBJECT, Endpoint, Head

REASONING = ("reasoning_content",)
"""The field that most clients read reasoning from."""


class ChatWriter(StreamWriter):
    """A right chat stream.

    `functions`: the client used the deprecated `functions`, so a call goes out as `function_call`. `reasoning`: the
    fields that reasoning goes out in; without any it does not go out.
    """

    ENDPOINT: ClassVar[Endpoint] = Endpoint.CHAT
    TABLE: ClassVar[ChoiceTable] = automaton.CHAT
    IS_ORDERED: ClassVar[bool] = True

    def __init__(
        self,
        head: Head,
        *,
        usage_is_null: bool = False,
        functions: bool = False,
        reasoning: tuple[str, ...] = REASONING,
    ) -> None:
        super().__init__(head, usage_is_null=usage_is_null)
        self._functions = functions
        self._reasoning = reasoning

    def _said(self, event: Spoken) -> Json | None:
        match event:
            case Opening():
                return {"role": "assistant", "content": ""}
            case Text(text=text):
                return {"content": text}
            case Reasoning(text=text):
                return dict.fromkeys(self._reasoning, text) or None
            case Refusal(text=text):
                return {"refusal": text}
            case ToolCall(call=call) | ToolArguments(call=call) if self._functions and call > 0:
                return None  # of old there was one call, and no place for another
            case ToolCall(name=name) if self._functions:
                return {"function_call": {"name": name, "arguments": ""}}
            case ToolArguments(text=text) if self._functions:
                return {"function_call": {"arguments": text}}
            case ToolCall():
                return {"tool_calls": [{"index": event.call, **call_object(event)}]}
            case ToolArguments():
                kind, member = CALL_MEMBERS[event.is_custom]
                return {"tool_calls": [{"index": event.call, kind: {member: event.text, **event.inner}, **event.more}]}
            case _:
                assert_never(event)

    def _choice(self, said: Json, fields: Json) -> Json:
        return {"delta": said | fields}

    def _reason(self, event: Finish) -> str:
        return finish_reason(event.reason, functions=self._functions)


class Chat(Dialect):
    """Answers as /v1/chat/completions gives them."""

    IS_CHAT: ClassVar[bool] = True

    def __init__(self, asked: Asked, reasoning: tuple[str, ...] = REASONING) -> None:
        self._asked = asked
        self._reasoning = reasoning

    def writer(self, head: Head, counted: Counted) -> ChatWriter:
        """The writer of a stream."""
        asked = self._asked
        return ChatWriter(head, usage_is_null=asked.usage is True, functions=asked.functions, reasoning=self._reasoning)

    def whole(self, head: Head, reply: Reply) -> bytes:
        """The reply to a request that did not ask for a stream."""
        return whole(head, reply, functions=self._asked.functions, reasoning=self._reasoning)

    def last_words(self, failure: Failure) -> bytes:
        """An error event, and the end."""
        return error_end(failure)


def whole(head: Head, reply: Reply, *, functions: bool = False, reasoning: tuple[str, ...] = REASONING) -> bytes:
    """The reply to a request that did not ask for a stream."""
    choices = []
    for index, answer in sorted(reply.answers.items()):
        message = _message(answer, functions=functions, reasoning=reasoning)
        choice = {
            "index": index,
            "message": message | answer.delta_fields,
            "logprobs": answer.logprobs,
            "finish_reason": finish_reason(answer.reason, functions=functions),
        }
        choices.append(choice | answer.choice_fields)
    return escape(msgspec.json.encode(whole_object(head, Endpoint.CHAT, choices, reply)))


def whole_object(head: Head, endpoint: Endpoint, choices: list[Json], reply: Reply) -> Json:
    """The envelope of a whole reply."""
    body: Json = {
        "id": head.id,
        "object": WHOLE_OBJECT[endpoint],
        "created": head.created,
        "model": head.model,
        "choices": choices,
    }
    if reply.usage is not None:
        body["usage"] = usage_object(reply.usage)
    if head.fingerprint is not None:
        body["system_fingerprint"] = head.fingerprint
    return body | {name: value for name, value in reply.fields.items() if name not in body}


def finish_reason(reason: str, *, functions: bool) -> str:
    """The event's reason, as the client knows it."""
    return "function_call" if functions and reason == "tool_calls" else reason


def call_object(call: ToolCall | Call) -> Json:
    """A tool call as OpenAI writes it; one that has just begun has no arguments yet."""
    kind, member = CALL_MEMBERS[call.is_custom]
    arguments = call.arguments if isinstance(call, Call) else ""
    return {"id": call.id, "type": kind, kind: {"name": call.name, member: arguments, **call.inner}, **call.more}


def _message(answer: Answer, *, functions: bool, reasoning: tuple[str, ...]) -> Json:
    is_spoken = answer.text != "" or not (answer.calls or answer.refusal)
    message: Json = {
        "role": "assistant",
        "content": answer.text if is_spoken else None,
        "refusal": answer.refusal or None,
    }
    if answer.reasoning:
        message |= dict.fromkeys(reasoning, answer.reasoning)
    if answer.calls and functions:
        message["function_call"] = {"name": answer.calls[0].name, "arguments": answer.calls[0].arguments}
    elif answer.calls:
        message["tool_calls"] = list(map(call_object, answer.calls))
    return message
