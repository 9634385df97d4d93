"""When a rule of /v1/responses or /v1/messages had a say: their streams are made of events, and not of chunks."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from welldone.rules import anthropic, responses
from welldone.rules.anthropic import content_blocks
from welldone.rules.choices import as_list, as_object
from welldone.rules.heard import ReplyKind, TraceView
from welldone.rules.messages import MessageKind

ApplicabilityTest: TypeAlias = Callable[[TraceView], bool]


# ---- responses


def _has_output_item(view: TraceView) -> bool:
    return bool(view.responses_stream.items) or bool(as_list(view.reply_object.get("output")))


def _has_content_part(view: TraceView) -> bool:
    return bool(view.responses_stream.part_events)


def _has_output_text(view: TraceView) -> bool:
    return any(piece.part_type == "output_text" for _, piece in view.responses_stream.part_events)


def _has_reasoning_part(view: TraceView) -> bool:
    return any(piece.is_reasoning for _, piece in view.responses_stream.part_events)


def _has_function_call(view: TraceView) -> bool:
    whole = (as_object(item).get("type") for item in as_list(view.reply_object.get("output")))
    return "function_call" in (*(item.type for item in view.responses_stream.items), *whole)


def _has_keepalive_event(view: TraceView) -> bool:
    is_silent = any(frame.data is None for frame in view.frames)  # a comment, or an event that has only a name
    return (
        is_silent
        or has_comment(view)
        or any(event.type == responses.KEEPALIVE_EVENT for event in view.responses_stream.events)
    )


def _has_failed_response(view: TraceView) -> bool:
    is_failed = (
        view.responses_stream.end_event is not None and view.responses_stream.end_event.type == "response.failed"
    )
    return is_failed or bool(view.all_errors)


# ---- messages


def _has_content_block(view: TraceView) -> bool:
    return bool(view.anthropic_stream.blocks) or bool(content_blocks(view.reply_object))


def _has_block_event(view: TraceView) -> bool:
    return _has_content_block(view) or any(
        event.type.startswith("content_block_") for event in view.anthropic_stream.all_events
    )


def _has_content(view: TraceView) -> bool:
    return "content" in view.reply_object


def _has_tool_use_or_reason(view: TraceView) -> bool:
    return _has_tool_use(view) or "tool_use" in (
        view.anthropic_stream.stop_reason,
        view.reply_object.get("stop_reason"),
    )


def _has_tool_use(view: TraceView) -> bool:
    return any(
        block.get("type") == "tool_use"
        for block in (*view.anthropic_stream.content, *content_blocks(view.reply_object))
    )


def _has_stop_sequence(view: TraceView) -> bool:
    return "stop_sequence" in (view.anthropic_stream.stop_reason, view.reply_object.get("stop_reason"))


def _has_ping(view: TraceView) -> bool:
    return has_comment(view) or any(event.type == anthropic.PING_EVENT for event in view.anthropic_stream.all_events)


def _has_error_event(view: TraceView) -> bool:
    return bool(view.all_errors)


def _is_error_message(view: TraceView) -> bool:
    return view.reply_kind is ReplyKind.HTTP_ERROR or bool(view.all_errors) or view.is_error_reply


# ---- both


def has_comment(view: TraceView) -> bool:
    """Whether a sign of life came as a comment."""
    if any(message.kind is MessageKind.COMMENT for message in view.messages):
        return True
    return view.reply_kind is ReplyKind.STREAM and any(line.startswith(b":") for line in view.trace.body.splitlines())


EVENT_APPLICABILITY: Mapping[str, ApplicabilityTest] = {
    **dict.fromkeys(
        ("resp-output-index", "resp-item-id-stable", "resp-item-added-first", "resp-done-events"), _has_output_item
    ),
    **dict.fromkeys(("resp-final-output", "resp-item-status", "resp-deltas"), _has_output_item),
    **dict.fromkeys(("resp-content-index", "resp-part-added-first", "resp-delta-equals-done"), _has_content_part),
    "resp-logprobs-array": _has_output_text,
    "resp-reasoning-parts": _has_reasoning_part,
    "resp-function-ids": _has_function_call,
    "resp-args-done": _has_function_call,
    "resp-keepalive": _has_keepalive_event,
    "resp-error": _has_failed_response,
    "msg-block-start-first": _has_block_event,
    **dict.fromkeys(("msg-block-index", "msg-block-start-full", "msg-block-stop"), _has_content_block),
    **dict.fromkeys(
        ("msg-block-start-empty", "msg-block-sequential", "msg-block-known", "msg-delta-type"), _has_content_block
    ),
    **dict.fromkeys(("msg-tool-ids", "msg-tool-input-json"), _has_tool_use),
    "msg-stop-reason-tool-use": _has_tool_use_or_reason,
    "msg-whole-content": _has_content,
    "msg-stop-sequence": _has_stop_sequence,
    "msg-ping-form": _has_ping,
    "msg-error-event": _has_error_event,
    "msg-error-last": _has_error_event,
    "msg-error-type": _is_error_message,
    "msg-error-body": _is_error_message,
}
"""By rule; the others have a say in every reply that they speak about."""

EVENT_NOT_APPLICABLE_REASONS: Mapping[str, str] = {
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
