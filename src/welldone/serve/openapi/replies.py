"""What the server sends, by dialect. Members may be added to any of these, by an upstream or by a newer server."""

from welldone.serve.openapi.kinds import ANY, COUNT, MAYBE_OBJECT, MAYBE_TEXT, OBJECT, TEXT, one_of, ref, shown
from welldone.wire.dialects.messages.counts import COUNTS
from welldone.wire.dialects.messages.objects import STOP_REASONS
from welldone.wire.dialects.responses.objects import DEFAULTS
from welldone.wire.events import Json
from welldone.wire.head import WHOLE_OBJECT, Endpoint

_COUNT_OR_NULL: Json = {"type": ["integer", "null"]}
_OBJECTS: Json = {"type": "array", "items": OBJECT}
_USAGE = shown(dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), COUNT))
_PROMPT_USAGE = shown(dict.fromkeys(("prompt_tokens", "total_tokens"), COUNT))
_FUNCTION = shown({"name": TEXT, "arguments": TEXT})
_VECTOR = one_of({"type": "array", "items": {"type": "number"}}, TEXT)


def listed(items: Json) -> Json:
    """A list as OpenAI writes it."""
    return shown({"object": {"const": "list"}, "data": {"type": "array", "items": items}})


def _whole(endpoint: Endpoint, said: Json) -> Json:
    choice = {"index": COUNT, **said, "logprobs": MAYBE_OBJECT, "finish_reason": TEXT}
    members = {
        "id": TEXT,
        "object": {"const": WHOLE_OBJECT[endpoint]},
        "created": COUNT,
        "model": TEXT,
        "choices": {"type": "array", "items": shown(choice)},
        "usage": ref("Usage"),
    }
    return shown(members, "usage")


def _answer() -> Json:
    call = shown({"id": TEXT, "type": {"const": "function"}, "function": _FUNCTION})
    members = {
        "role": {"const": "assistant"},
        "content": MAYBE_TEXT,
        "refusal": MAYBE_TEXT,
        "reasoning_content": TEXT,
        "tool_calls": {"type": "array", "items": call, "minItems": 1},
        "function_call": _FUNCTION,
    }
    return shown(members, "reasoning_content", "tool_calls", "function_call")


def _response() -> Json:
    own = {
        "id": TEXT,
        "object": {"const": "response"},
        "created_at": {"type": "number"},
        "completed_at": {"type": ["number", "null"]},
        "status": {"enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]},
        "error": MAYBE_OBJECT,
        "incomplete_details": MAYBE_OBJECT,
        "model": TEXT,
        "output": _OBJECTS,
        "usage": MAYBE_OBJECT,
    }
    return shown(own | dict.fromkeys(DEFAULTS, ANY), "user")


def _ollama(said: str, kind: Json) -> Json:
    counts = dict.fromkeys(("prompt_eval_count", "eval_count"), COUNT)
    members = {
        "model": TEXT,
        "created_at": TEXT,
        said: kind,
        "done": {"type": "boolean"},
        "done_reason": TEXT,
        **counts,
    }
    return shown(members, "done_reason", *counts)


COMPONENTS: Json = {
    "Usage": _USAGE,
    "ChatCompletion": _whole(Endpoint.CHAT, {"message": _answer()}),
    "Completion": _whole(Endpoint.COMPLETIONS, {"text": TEXT}),
    "Response": _response(),
    "ResponseItems": shown(
        {
            "object": {"const": "list"},
            "data": _OBJECTS,
            "first_id": MAYBE_TEXT,
            "last_id": MAYBE_TEXT,
            "has_more": {"type": "boolean"},
        }
    ),
    "ResponseDeleted": shown(
        {"id": TEXT, "object": {"const": "response"}, "deleted": {"const": True}},
    ),
    "ResponseTokens": shown({"object": {"const": "response.input_tokens"}, "input_tokens": COUNT}),
    "AnthropicMessage": shown(
        {
            "id": TEXT,
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": TEXT,
            "content": {"type": "array", "items": shown({"type": TEXT})},
            "stop_reason": {"enum": [*sorted(STOP_REASONS), None]},
            "stop_sequence": MAYBE_TEXT,
            "usage": shown(dict.fromkeys(COUNTS, _COUNT_OR_NULL), *COUNTS),
        }
    ),
    "AnthropicTokens": shown({"input_tokens": COUNT}),
    "OllamaChat": _ollama("message", shown({"role": {"const": "assistant"}, "content": TEXT})),
    "OllamaGenerate": _ollama("response", TEXT),
    "OllamaTags": shown({"models": {"type": "array", "items": shown({"name": TEXT, "model": TEXT})}}),
    "OllamaVersion": shown({"version": TEXT}),
    "Model": shown({"id": TEXT, "object": {"const": "model"}, "created": COUNT, "owned_by": TEXT}),
    "AnthropicModel": shown({"id": TEXT, "type": {"const": "model"}, "display_name": TEXT, "created_at": TEXT}),
    "Embeddings": shown(
        {
            "object": {"const": "list"},
            "data": {"type": "array", "items": shown({"index": COUNT, "embedding": _VECTOR})},
            "model": TEXT,
            "usage": _PROMPT_USAGE,
        }
    ),
    "Ranks": shown(
        {
            "model": TEXT,
            "results": {"type": "array", "items": shown({"index": COUNT, "relevance_score": {"type": "number"}})},
            "usage": _PROMPT_USAGE,
        }
    ),
    "Tokens": shown(
        {
            "tokens": {"type": "array", "items": ANY},
            "count": COUNT,
            "max_model_len": COUNT,
            "token_strs": {"type": "array", "items": TEXT},
        },
        "token_strs",
    ),
    "TextOfTokens": shown({"content": TEXT, "prompt": TEXT}),
    "Status": shown({"status": {"const": "ok"}}),
    "Done": shown({"success": {"const": True}}),
    "Slots": {"type": "array", "items": shown({"id": COUNT, "model": TEXT, "is_processing": {"type": "boolean"}})},
    "Error": shown(
        {"error": shown({"message": TEXT, "type": TEXT, "param": MAYBE_TEXT, "code": MAYBE_TEXT})},
    ),
    "AnthropicError": shown(
        {"type": {"const": "error"}, "error": shown({"type": TEXT, "message": TEXT}), "request_id": TEXT},
        "request_id",
    ),
    "OllamaError": shown({"error": TEXT}),
}
