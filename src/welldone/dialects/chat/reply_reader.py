"""Reader of non-streaming replies: converts a reply to the chunks of a stream."""

from collections.abc import Generator, Iterator

import msgspec

from welldone.core.envelope import REPLY_OBJECT, Endpoint
from welldone.core.events import CALL_TYPE_AND_ARGUMENTS_FIELD, Failure, Json
from welldone.core.fields import bad_stream_failure, check_error_shape, incomplete_stream_failure, read_error
from welldone.core.finish_reasons import finish_word
from welldone.core.json_budget import decode_elements, decode_members, exceeds_blocking_budget
from welldone.core.lenient_json import as_list, as_object, parse_first_value, parse_strict
from welldone.core.repair_log import RepairLog

_ARGUMENTS_FIELD = dict(CALL_TYPE_AND_ARGUMENTS_FIELD.values())

_RAW_CHOICES = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_LOGPROBS_PER_CHUNK = 100
"""Most log probabilities per chunk; with 20 alternatives each, reading them takes 10 ms."""


def parse_reply(body: bytes, endpoint: Endpoint, repair_log: RepairLog) -> Generator[None, None, Json | Failure]:
    """Convert a reply to one chunk, or to a failure if it is an error or has no choices.

    Each step fits the blocking budget.
    """
    has_steps = exceeds_blocking_budget(body)
    value, has_tail = yield from parse_first_value(body, in_steps=has_steps)
    repair_log.record_if(has_tail, "ns-no-sse-tail")
    replies = value if isinstance(value, list) else [value]
    reply = _merge_replies(replies)
    if reply is None:
        return bad_stream_failure("a reply that is not a JSON object")
    failure = read_error(reply, body.lstrip(), RepairLog())
    if failure is not None:
        check_error_shape(reply.get("error"), repair_log)
        return failure
    if isinstance(reply.get("choices"), dict):
        repair_log.record("ns-choices", reply["choices"])
        reply = reply | {"choices": [reply["choices"]]}
    if not isinstance(reply.get("choices"), list) or not reply["choices"]:
        repair_log.record("ns-choices", reply.get("choices"))
        return incomplete_stream_failure("the server sent no answer")
    if has_steps and (yield from _exceeds_budget_without_logprobs(body)):
        return bad_stream_failure("a reply that is too complex to parse")
    _check_reply(reply, endpoint, repair_log)
    return _reply_to_chunk(reply, endpoint)


def split_by_logprobs(chunk: Json) -> Iterator[Json]:
    """Split a chunk with many log probabilities into chunks that each fit the blocking budget."""
    choices = [choice for choice in chunk["choices"] if isinstance(choice, dict)]
    longest = max((len(_logprob_entries(choice)) for choice in choices), default=0)
    if longest <= _LOGPROBS_PER_CHUNK:
        yield chunk
        return
    envelope: Json = {key: chunk[key] for key in ("id", "object", "created", "model") if key in chunk}
    for start in range(0, longest, _LOGPROBS_PER_CHUNK):
        is_last = start + _LOGPROBS_PER_CHUNK >= longest
        # The other fields are sent once: usage on the last chunk, all else on the first.
        piece = {key: value for key, value in chunk.items() if key != "usage"} if start == 0 else dict(envelope)
        if is_last and "usage" in chunk:
            piece["usage"] = chunk["usage"]
        yield piece | {"choices": [_slice_choice(choice, start, is_last=is_last) for choice in choices]}


def _exceeds_budget_without_logprobs(body: bytes) -> Generator[None, None, bool]:
    """Whether everything except the log probabilities, which is read in one step, exceeds the blocking budget."""
    rest: list[msgspec.Raw] = []
    try:
        for reply in decode_elements(body) if body.lstrip().startswith(b"[") else [body]:
            members = decode_members(reply)
            yield
            choices = _RAW_CHOICES.decode(members.pop("choices"))
            yield
            rest += [*members.values(), *(raw for item in choices for name, raw in item.items() if name != "logprobs")]
    except (msgspec.MsgspecError, KeyError):
        return True  # no known server sends this shape
    return exceeds_blocking_budget(b",".join(rest))


def _slice_choice(choice: Json, start: int, *, is_last: bool) -> Json:
    """A choice with a slice of its log probabilities: the first has the content, the last the finish reason."""
    entries = _logprob_entries(choice)[start : start + _LOGPROBS_PER_CHUNK]
    if start == 0:
        out = choice | ({"logprobs": choice["logprobs"] | {"content": entries}} if entries else {})
    else:
        logprobs = {"content": entries, "refusal": None} if entries else None
        out = {"index": choice.get("index"), "delta": {}, "logprobs": logprobs}
    return out | {"finish_reason": choice.get("finish_reason") if is_last else None}


def _logprob_entries(choice: Json) -> list[object]:
    return as_list(as_object(choice.get("logprobs")).get("content"))


def _merge_replies(replies: list[object]) -> Json | None:
    """Merge a list of replies, which some servers send for a list of prompts; None if one is not an object."""
    objects = [reply for reply in replies if isinstance(reply, dict)]
    if not objects or len(objects) != len(replies):
        return None
    if len(objects) == 1:
        return objects[0]
    choices = [choice for reply in objects for choice in reply.get("choices") or [] if isinstance(choice, dict)]
    return objects[0] | {"choices": [choice | {"index": index} for index, choice in enumerate(choices)]}


def _reply_to_chunk(reply: Json, endpoint: Endpoint) -> Json:
    if not endpoint.is_chat:
        return reply
    choices = []
    for choice in reply["choices"]:
        if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
            choices.append(choice)  # read as in a stream
            continue
        message = dict(choice["message"])
        calls = message.get("tool_calls")
        calls = [calls] if calls and isinstance(calls, dict) else calls
        if isinstance(calls, list):
            calls = [entry | {"index": n} if isinstance(entry, dict) else entry for n, entry in enumerate(calls)]
            message["tool_calls"] = calls
            if finish_word(choice.get("finish_reason")) is None and calls and all(map(_is_complete_tool_call, calls)):
                choice = choice | {"finish_reason": "tool_calls"}
        choices.append({key: value for key, value in choice.items() if key != "message"} | {"delta": message})
    return reply | {"choices": choices}


def _is_complete_tool_call(tool_call: object) -> bool:
    arguments = as_object(as_object(tool_call).get("function")).get("arguments")
    return isinstance(parse_strict(arguments.encode()) if isinstance(arguments, str) else arguments, dict)


def _check_reply(reply: Json, endpoint: Endpoint, repair_log: RepairLog) -> None:
    choices = [choice for choice in reply["choices"] if isinstance(choice, dict)]
    is_named = all(isinstance(reply.get(name), str) for name in ("id", "model")) and type(reply.get("created")) is int
    is_schema = is_named and all(_matches_schema(choice, endpoint) for choice in choices)
    repair_log.record_if(not is_schema, "ns-object-schema", reply)
    repair_log.record_if(reply.get("object") != REPLY_OBJECT[endpoint], "ns-object", reply.get("object"))
    repair_log.record_if(not isinstance(reply.get("usage"), dict), "ns-usage", reply.get("usage"))
    for choice in choices:
        reason = choice.get("finish_reason")
        repair_log.record_if(not isinstance(reason, str) or reason not in endpoint.finish_reasons, "ns-finish", choice)
        if endpoint.is_chat:
            message = as_object(choice.get("message"))
            repair_log.record_if(message.get("role") != "assistant", "ns-role", message)
            repair_log.record_if(not isinstance(message.get("content", 0), str | None), "ns-content-key", message)
            are_valid = all(map(_is_valid_tool_call, as_list(message.get("tool_calls"))))
            repair_log.record_if(not are_valid, "ns-tool-calls", message)


def _matches_schema(choice: Json, endpoint: Endpoint) -> bool:
    """Whether a choice has the required members of OpenAI's schema with their types."""
    if type(choice.get("index")) is not int or not isinstance(choice.get("logprobs"), dict | None):
        return False
    if not endpoint.is_chat:
        return isinstance(choice.get("text"), str)
    return isinstance(as_object(choice.get("message")).get("refusal"), str | None)


def _is_valid_tool_call(tool_call: object) -> bool:
    if not isinstance(tool_call, dict) or "index" in tool_call or str(tool_call.get("type")) not in _ARGUMENTS_FIELD:
        return False
    function = as_object(tool_call.get(tool_call["type"]))
    strings = tool_call.get("id"), function.get("name"), function.get(_ARGUMENTS_FIELD[tool_call["type"]])
    return all(isinstance(value, str) for value in strings)
