"""When a rule of /v1/responses or /v1/messages had a say: their streams are made of events, and not of chunks."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from welldone.rules import anthropic, responses
from welldone.rules.anthropic import blocks_of
from welldone.rules.choices import as_list, as_object
from welldone.rules.heard import Form, Heard
from welldone.rules.messages import Kind

Occasion: TypeAlias = Callable[[Heard], bool]


# ---- responses


def _has_item(heard: Heard) -> bool:
    return bool(heard.output.items) or bool(as_list(heard.reply.get("output")))


def _has_part(heard: Heard) -> bool:
    return bool(heard.output.parts)


def _has_text(heard: Heard) -> bool:
    return any(piece.kind == "output_text" for _, piece in heard.output.parts)


def _has_thought(heard: Heard) -> bool:
    return any(piece.is_reasoning for _, piece in heard.output.parts)


def _has_function_call(heard: Heard) -> bool:
    whole = (as_object(item).get("type") for item in as_list(heard.reply.get("output")))
    return "function_call" in (*(item.type for item in heard.output.items), *whole)


def _has_keepalive(heard: Heard) -> bool:
    is_silent = any(frame.data is None for frame in heard.frames)  # a comment, or an event that has only a name
    return is_silent or has_comment(heard) or any(event.type == responses.KEEPALIVE for event in heard.output.events)


def _failed(heard: Heard) -> bool:
    is_failed = heard.output.end is not None and heard.output.end.type == "response.failed"
    return is_failed or bool(heard.failures)


# ---- messages


def _has_block(heard: Heard) -> bool:
    return bool(heard.turn.blocks) or bool(blocks_of(heard.reply))


def _has_piece(heard: Heard) -> bool:
    return _has_block(heard) or any(event.type.startswith("content_block_") for event in heard.turn.heard)


def _has_content(heard: Heard) -> bool:
    return "content" in heard.reply


def _is_called(heard: Heard) -> bool:
    return _has_tool_use(heard) or "tool_use" in (heard.turn.reason, heard.reply.get("stop_reason"))


def _has_tool_use(heard: Heard) -> bool:
    return any(block.get("type") == "tool_use" for block in (*heard.turn.content, *blocks_of(heard.reply)))


def _has_stopped_at(heard: Heard) -> bool:
    return "stop_sequence" in (heard.turn.reason, heard.reply.get("stop_reason"))


def _has_ping(heard: Heard) -> bool:
    return has_comment(heard) or any(event.type == anthropic.PING for event in heard.turn.heard)


def _has_failure(heard: Heard) -> bool:
    return bool(heard.failures)


def _is_failure(heard: Heard) -> bool:
    return heard.form is Form.FAILURE or bool(heard.failures) or heard.reply_fails


# ---- both


def has_comment(heard: Heard) -> bool:
    """Whether a sign of life came as a comment."""
    if any(message.kind is Kind.COMMENT for message in heard.messages):
        return True
    return heard.form is Form.STREAM and any(line.startswith(b":") for line in heard.trace.body.splitlines())


OF_EVENTS: Mapping[str, Occasion] = {
    **dict.fromkeys(
        ("resp-output-index", "resp-item-id-stable", "resp-item-added-first", "resp-done-events"), _has_item
    ),
    **dict.fromkeys(("resp-final-output", "resp-item-status", "resp-deltas"), _has_item),
    **dict.fromkeys(("resp-content-index", "resp-part-added-first", "resp-delta-equals-done"), _has_part),
    "resp-logprobs-array": _has_text,
    "resp-reasoning-parts": _has_thought,
    "resp-function-ids": _has_function_call,
    "resp-args-done": _has_function_call,
    "resp-keepalive": _has_keepalive,
    "resp-error": _failed,
    "msg-block-start-first": _has_piece,
    **dict.fromkeys(("msg-block-index", "msg-block-start-full", "msg-block-stop"), _has_block),
    **dict.fromkeys(("msg-block-start-empty", "msg-block-sequential", "msg-block-known", "msg-delta-type"), _has_block),
    **dict.fromkeys(("msg-tool-ids", "msg-tool-input-json"), _has_tool_use),
    "msg-stop-reason-tool-use": _is_called,
    "msg-whole-content": _has_content,
    "msg-stop-sequence": _has_stopped_at,
    "msg-ping-form": _has_ping,
    "msg-error-event": _has_failure,
    "msg-error-last": _has_failure,
    "msg-error-type": _is_failure,
    "msg-error-body": _is_failure,
}
"""By rule; the others have a say in every reply that they speak about."""

UNHEARD: Mapping[str, str] = {
    "resp-function-ids": "no function call was heard",
    "resp-args-done": "no function call was heard",
    "resp-reasoning": "the model sent no reasoning",
    "resp-keepalive": "no keep-alive was heard",
    "resp-error": "no stream failed in the middle",
    "msg-tool": "no tool call was heard",
    "msg-stop-reason-tool-use": "no tool call was heard",
    "msg-stop-sequence": "no answer ended at a stop sequence",
    "msg-ping": "no ping was heard",
    "msg-error": "no stream failed in the middle",
    "msg-error-body": "nothing was refused",
    "msg-error-type": "nothing was refused",
}
"""Why a rule had no say, as in `occasions`."""
