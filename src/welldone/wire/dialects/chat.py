"""The dialect of /v1/chat/completions: events as its stream, and as its whole reply."""

from typing import ClassVar, assert_never

import msgspec

from welldone.wire import automaton
from welldone.wire.asked import RequestFacts
from welldone.wire.automaton import ChoiceTransitions
from welldone.wire.collect import CollectedChoice, CollectedToolCall, CollectedReply
from welldone.wire.counts import usage_object
from welldone.wire.dialects.dialect import UsageSource, Dialect
from welldone.wire.dialects.stream import ContentEvent, ChunkWriter, error_and_done, escape_line_breaks
from welldone.wire.events import (
    CALL_TYPE_AND_ARGUMENTS_FIELD,
    Failure,
    Finish,
    Json,
    ChoiceStart,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
)
from welldone.wire.head import REPLY_OBJECT, Endpoint, Envelope

REASONING_FIELDS = ("reasoning_content",)
"""The field that most clients read reasoning from."""


class ChatWriter(ChunkWriter):
    """A right chat stream.

    `functions`: the client used the deprecated `functions`, so a call goes out as `function_call`. `reasoning`: the
    fields that reasoning goes out in; without any it does not go out.
    """

    ENDPOINT: ClassVar[Endpoint] = Endpoint.CHAT
    TABLE: ClassVar[ChoiceTransitions] = automaton.CHAT_TRANSITIONS
    IS_ORDERED: ClassVar[bool] = True

    def __init__(
        self,
        envelope: Envelope,
        *,
        usage_is_null: bool = False,
        functions: bool = False,
        reasoning: tuple[str, ...] = REASONING_FIELDS,
    ) -> None:
        super().__init__(envelope, usage_is_null=usage_is_null)
        self._functions = functions
        self._reasoning = reasoning

    def _content_fields(self, event: ContentEvent) -> Json | None:
        match event:
            case ChoiceStart():
                return {"role": "assistant", "content": ""}
            case Text(text=text):
                return {"content": text}
            case Reasoning(text=text):
                return dict.fromkeys(self._reasoning, text) or None
            case Refusal(text=text):
                return {"refusal": text}
            case ToolCall(call_index=call) | ToolArguments(call_index=call) if self._functions and call > 0:
                return None  # of old there was one call, and no place for another
            case ToolCall(name=name) if self._functions:
                return {"function_call": {"name": name, "arguments": ""}}
            case ToolArguments(text=text) if self._functions:
                return {"function_call": {"arguments": text}}
            case ToolCall():
                return {"tool_calls": [{"index": event.call_index, **tool_call_object(event)}]}
            case ToolArguments():
                kind, member = CALL_TYPE_AND_ARGUMENTS_FIELD[event.is_custom]
                return {
                    "tool_calls": [
                        {
                            "index": event.call_index,
                            kind: {member: event.text, **event.inner_extra_fields},
                            **event.extra_fields,
                        }
                    ]
                }
            case _:
                assert_never(event)

    def _choice_fields(self, content: Json, fields: Json) -> Json:
        return {"delta": content | fields}

    def _finish_reason(self, event: Finish) -> str:
        return finish_reason(event.reason, functions=self._functions)


class ChatDialect(Dialect):
    """Answers as /v1/chat/completions gives them."""

    IS_CHAT: ClassVar[bool] = True

    def __init__(self, facts: RequestFacts, reasoning: tuple[str, ...] = REASONING_FIELDS) -> None:
        self._facts = facts
        self._reasoning = reasoning

    def make_writer(self, envelope: Envelope, usage_source: UsageSource) -> ChatWriter:
        """The writer of a stream."""
        asked = self._facts
        return ChatWriter(
            envelope,
            usage_is_null=asked.include_usage is True,
            functions=asked.uses_legacy_functions,
            reasoning=self._reasoning,
        )

    def encode_reply(self, envelope: Envelope, reply: CollectedReply) -> bytes:
        """The reply to a request that did not ask for a stream."""
        return encode_chat_reply(
            envelope, reply, functions=self._facts.uses_legacy_functions, reasoning=self._reasoning
        )

    def final_error_bytes(self, failure: Failure) -> bytes:
        """An error event, and the end."""
        return error_and_done(failure)


def encode_chat_reply(
    envelope: Envelope, reply: CollectedReply, *, functions: bool = False, reasoning: tuple[str, ...] = REASONING_FIELDS
) -> bytes:
    """The reply to a request that did not ask for a stream."""
    choices = []
    for index, answer in sorted(reply.choices.items()):
        message = _message_object(answer, functions=functions, reasoning=reasoning)
        choice = {
            "index": index,
            "message": message | answer.delta_fields,
            "logprobs": answer.logprobs,
            "finish_reason": finish_reason(answer.finish_reason, functions=functions),
        }
        choices.append(choice | answer.choice_fields)
    return escape_line_breaks(msgspec.json.encode(completion_object(envelope, Endpoint.CHAT, choices, reply)))


def completion_object(envelope: Envelope, endpoint: Endpoint, choices: list[Json], reply: CollectedReply) -> Json:
    """The envelope of a whole reply."""
    body: Json = {
        "id": envelope.id,
        "object": REPLY_OBJECT[endpoint],
        "created": envelope.created,
        "model": envelope.model,
        "choices": choices,
    }
    if reply.usage is not None:
        body["usage"] = usage_object(reply.usage)
    if envelope.fingerprint is not None:
        body["system_fingerprint"] = envelope.fingerprint
    return body | {name: value for name, value in reply.unknown_fields.items() if name not in body}


def finish_reason(reason: str, *, functions: bool) -> str:
    """The event's reason, as the client knows it."""
    return "function_call" if functions and reason == "tool_calls" else reason


def tool_call_object(call: ToolCall | CollectedToolCall) -> Json:
    """A tool call as OpenAI writes it; one that has just begun has no arguments yet."""
    kind, member = CALL_TYPE_AND_ARGUMENTS_FIELD[call.is_custom]
    arguments = call.arguments if isinstance(call, CollectedToolCall) else ""
    return {
        "id": call.id,
        "type": kind,
        kind: {"name": call.name, member: arguments, **call.inner_extra_fields},
        **call.extra_fields,
    }


def _message_object(answer: CollectedChoice, *, functions: bool, reasoning: tuple[str, ...]) -> Json:
    is_spoken = answer.text != "" or not (answer.tool_calls or answer.refusal)
    message: Json = {
        "role": "assistant",
        "content": answer.text if is_spoken else None,
        "refusal": answer.refusal or None,
    }
    if answer.reasoning:
        message |= dict.fromkeys(reasoning, answer.reasoning)
    if answer.tool_calls and functions:
        message["function_call"] = {"name": answer.tool_calls[0].name, "arguments": answer.tool_calls[0].arguments}
    elif answer.tool_calls:
        message["tool_calls"] = list(map(tool_call_object, answer.tool_calls))
    return message
