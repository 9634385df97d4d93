"""Plain client: accumulates the streams and replies of every dialect with `json` and a minimal SSE parser.

It imports nothing of welldone, so that it shares no bug with the reader, the repairer or the rules. It stores every
value of an unknown member in the order received; the tests decide what may be dropped or merged.

It accumulates as the vendors' references do, which each part names. `test_plain_client.py` compares it with OpenAI's
own client, which is installed for the tests.
"""

import json
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
Sequences: TypeAlias = dict[str, list[Any]]
"""Values of unknown members by name, in the order received."""

_CHUNK = {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"}
_CHOICE = {"index", "delta", "message", "text", "logprobs", "finish_reason"}
_MESSAGE = {
    "role",
    "content",
    "refusal",
    "reasoning_content",
    "reasoning",
    "tool_calls",
    "function_call",
    "content_parts",
}
_ENTRY = {"index", "id", "type", "function", "custom"}
_FUNCTION = {"name", "arguments", "input"}


@dataclass
class Call:
    """A tool call: `text` is the arguments of a function or the input of a custom tool."""

    id: str = ""
    type: str = ""
    name: str = ""
    text: str = ""
    members: Sequences = field(default_factory=dict)


@dataclass
class Choice:
    """Accumulated choice."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: list[Call] = field(default_factory=list)
    parts: list[Any] = field(default_factory=list)
    """Content parts other than text and thinking."""
    logprobs: Sequences = field(default_factory=dict)
    """The entries of each list of log probabilities."""
    finish: list[str] = field(default_factory=list)
    members: Sequences = field(default_factory=dict)
    delta_members: Sequences = field(default_factory=dict)


@dataclass
class Answer:
    """Accumulated reply."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: list[Json] = field(default_factory=list)
    members: Sequences = field(default_factory=dict)
    envelopes: list[Any] = field(default_factory=list)
    """Distinct values of id, created, model and fingerprint."""
    errors: list[Any] = field(default_factory=list)
    is_done: bool = False


def events(stream: bytes) -> list[tuple[str, str]]:
    """Return the name and data of each SSE event."""
    found = []
    name = ""
    data: list[str] = []
    for line in stream.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                found.append((name, "\n".join(data)))
            name, data = "", []
        elif key == "data":
            data.append(value)
        elif key == "event":
            name = value
    return found


def objects(stream: bytes) -> list[Json]:
    """Return the JSON objects of a stream."""
    return [json.loads(data) for _, data in events(stream) if data != "[DONE]"]


# Chat and completions. Source: `accumulate_delta` and `ChatCompletionStreamState` of openai-python. Strings are
# concatenated, also roles, ids and names; entries of `tool_calls` are merged by `index`, log probabilities appended.


def chunks_answer(stream: bytes) -> Answer:
    """Read a stream of chunks."""
    answer = Answer()
    roles: dict[int, str] = {}
    for _, data in events(stream):
        if data == "[DONE]":
            answer.is_done = True
            continue
        assert not answer.is_done, "an event after [DONE]"
        chunk = json.loads(data)
        _add_chunk(answer, chunk)
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta") or {}
            roles[choice["index"]] = roles.get(choice["index"], "") + (delta.get("role") or "")
    assert set(roles.values()) <= {"", "assistant"}, roles
    return answer


def reply_answer(body: bytes) -> Answer:
    """Read a non-streaming reply of chat or completions."""
    answer = Answer(is_done=True)
    _add_chunk(answer, json.loads(body))
    return answer


def _add_chunk(answer: Answer, chunk: Json) -> None:
    if chunk.get("error"):
        answer.errors.append(chunk["error"])
        return
    envelope = [chunk.get(name) for name in ("id", "created", "model", "system_fingerprint")]
    if envelope not in answer.envelopes:
        answer.envelopes.append(envelope)
    _collect(answer.members, chunk, _CHUNK)
    if chunk.get("usage") is not None:
        answer.usage.append(chunk["usage"])
    for piece in chunk["choices"]:
        _add_choice(answer.choices.setdefault(piece["index"], Choice()), piece)


def _add_choice(choice: Choice, piece: Json) -> None:
    _collect(choice.members, piece, _CHOICE)
    if piece.get("finish_reason") is not None:
        choice.finish.append(piece["finish_reason"])
    for name, entries in (piece.get("logprobs") or {}).items():
        _add_logprobs(choice, name, entries)
    choice.text += piece.get("text") or ""
    message = piece.get("delta") or piece.get("message") or {}
    _collect(choice.delta_members, message, _MESSAGE)
    _add_content(choice, message.get("content"))
    # Entries of later chunks have an index, which openai-python requires.
    choice.parts += [_without_index(part) for part in message.get("content_parts") or []]
    choice.reasoning += message.get("reasoning_content") or message.get("reasoning") or ""
    choice.refusal += message.get("refusal") or ""
    for position, entry in enumerate(message.get("tool_calls") or []):
        _add_call(choice, entry, entry.get("index", position))
    if message.get("function_call"):
        _add_call(choice, {"type": "function", "function": message["function_call"]}, 0)


def _add_logprobs(choice: Choice, name: str, entries: object) -> None:
    if isinstance(entries, list) and entries:
        choice.logprobs.setdefault(name, []).extend(entries)
    elif not isinstance(entries, list) and entries is not None:
        choice.logprobs.setdefault(name, []).append(entries)


def _add_content(choice: Choice, content: object) -> None:
    """Add a string, or a list of parts as Mistral sends it."""
    if isinstance(content, str):
        choice.text += content
    for part in content if isinstance(content, list) else []:
        if part["type"] == "text":
            choice.text += part["text"]
        elif part["type"] == "thinking":
            choice.reasoning += "".join(thought["text"] for thought in part["thinking"])
        else:
            choice.parts.append(part)


def _without_index(part: Json) -> Json:
    return {name: item for name, item in part.items() if name != "index"}


def _add_call(choice: Choice, entry: Json, position: int) -> None:
    while len(choice.calls) <= position:
        choice.calls.append(Call())
    call = choice.calls[position]
    call.id += entry.get("id") or ""
    call.type = call.type or entry.get("type") or ""
    named = entry.get("function") or entry.get("custom") or {}
    call.name += named.get("name") or ""
    call.text += named.get("arguments") or named.get("input") or ""
    _collect(call.members, entry, _ENTRY)
    _collect(call.members, {f"function.{name}": value for name, value in named.items() if name not in _FUNCTION}, set())


def _collect(into: Sequences, members: Json, known: set[str]) -> None:
    for name, value in members.items():
        if name not in known:
            into.setdefault(name, []).append(value)


# Responses. Source: the events of the API reference, as `ResponseStreamState` of openai-python accumulates them. Items
# and parts are appended when they are added, deltas are concatenated, and the last event has the whole Response.


def response_of(stream: bytes) -> Json:
    """Return the Response of the last event of a stream."""
    response: Json = {}
    for event in objects(stream):
        if "response" in event:
            response = event["response"]
    return response


def responses_answer(response: Json) -> Answer:
    """Read a Response."""
    answer = Answer(is_done=response.get("status") in ("completed", "incomplete"))
    choice = answer.choices[0] = Choice()
    for item in response.get("output", []):
        _add_item(choice, item)
    if response.get("error"):
        answer.errors.append(response["error"])
    reason = (response.get("incomplete_details") or {}).get("reason")
    choice.finish.append(reason or response["status"])
    if response.get("usage") is not None:
        answer.usage.append(response["usage"])
    return answer


def _add_item(choice: Choice, item: Json) -> None:
    match item["type"]:
        case "message":
            for part in item["content"]:
                choice.text += part.get("text", "")
                choice.refusal += part.get("refusal", "")
                if part.get("logprobs"):
                    choice.logprobs.setdefault("content", []).extend(part["logprobs"])
        case "reasoning":
            choice.reasoning += "".join(part["text"] for part in [*(item.get("summary") or []), *item["content"]])
        case "function_call":
            known = {"id", "type", "status", "call_id", "name", "arguments"}
            call = Call(item["call_id"], "function", item["name"], item["arguments"])
            _collect(call.members, item, known)
            choice.calls.append(call)
        case "custom_tool_call":
            known = {"id", "type", "status", "call_id", "name", "input"}
            call = Call(item["call_id"], "custom", item["name"], item["input"])
            _collect(call.members, item, known)
            choice.calls.append(call)
        case _:
            choice.parts.append(item)


_DELTA_PATHS = {
    "response.output_text.delta": ("content", "content_index", "text"),
    "response.refusal.delta": ("content", "content_index", "refusal"),
    "response.reasoning_text.delta": ("content", "content_index", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_index", "text"),
}
_ITEM_DELTAS = {
    "response.function_call_arguments.delta": "arguments",
    "response.mcp_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.code_interpreter_call_code.delta": "code",
}


def output_of_deltas(stream: bytes) -> list[Json]:
    """Return the output items as they were added, with the texts of their deltas."""
    items: list[Json] = []
    for event in objects(stream):
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"])
        elif kind in ("response.content_part.added", "response.reasoning_summary_part.added"):
            name = "content" if kind == "response.content_part.added" else "summary"
            parts = items[event["output_index"]].setdefault(name, [])
            assert event[f"{name}_index"] == len(parts)
            parts.append(event["part"])
        elif kind in _DELTA_PATHS:
            name, index, text = _DELTA_PATHS[kind]
            items[event["output_index"]][name][event[index]][text] += event["delta"]
        elif kind in _ITEM_DELTAS:
            items[event["output_index"]][_ITEM_DELTAS[kind]] += event["delta"]
    return items


def texts_of(items: list[Json]) -> list[Json]:
    """Return what deltas transmit of each item."""
    return [
        {name: item[name] for name in ("type", "arguments", "input", "code") if name in item}
        | {
            name: [part.get("text", part.get("refusal")) for part in item.get(name) or []]
            for name in ("content", "summary")
        }
        for item in items
    ]


def responses_deltas(stream: bytes) -> dict[tuple[int, str], str]:
    """Return the texts of the deltas by output index and event type."""
    texts: dict[tuple[int, str], str] = {}
    for event in objects(stream):
        kind = event["type"]
        if kind.endswith(".delta"):
            key = event["output_index"], kind
            texts[key] = texts.get(key, "") + event["delta"]
    return texts


# Messages. Source: Anthropic's page on streaming Messages, and `accumulate_event` of anthropic-sdk-python. A block is
# appended when it starts, deltas are concatenated, `partial_json` is parsed when its block stops, a signature replaces
# the one before, citations are appended, and the counts of `message_delta` replace those of the start.


def message_of(stream: bytes) -> Json:
    """Accumulate a stream to a message as Anthropic's client does."""
    message: Json = {}
    pieces: dict[int, str] = {}
    for event in objects(stream):
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                _add_block_delta(message["content"][event["index"]], event["delta"], pieces, event["index"])
            case "content_block_stop":
                if event["index"] in pieces:
                    message["content"][event["index"]]["input"] = _input(pieces[event["index"]])
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
                message |= {name: item for name, item in event.items() if name not in ("type", "delta", "usage")}
            case "message_stop":
                message["is_stopped"] = True
            case "ping":
                pass
            case _:
                message.setdefault("others", []).append(event)
    return message


def _add_block_delta(block: Json, delta: Json, pieces: dict[int, str], index: int) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        case "input_json_delta":
            pieces[index] = pieces.get(index, "") + delta["partial_json"]
        case _:
            block.setdefault("unknown", []).append(delta)


def _input(text: str) -> object:
    """Input of a call; the text if it is not JSON because the message was truncated."""
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text


def messages_answer(message: Json) -> Answer:
    """Read a message. The text of a call is its input as JSON; a truncated call is left out."""
    answer = Answer(is_done="stop_reason" in message)
    choice = answer.choices[0] = Choice()
    for block in message.get("content", []):
        match block["type"]:
            case "text":
                choice.text += block["text"]
            case "thinking":
                choice.reasoning += block["thinking"]
            case "tool_use" if isinstance(block["input"], str) and message["stop_reason"] == "max_tokens":
                pass
            case "tool_use":
                call = Call(block["id"], "function", block["name"], json.dumps(block["input"]))
                _collect(call.members, block, {"type", "id", "name", "input"})
                choice.calls.append(call)
            case _:
                choice.parts.append(block)
    choice.finish.append(message.get("stop_reason") or "")
    answer.errors += message.get("others", [])
    if message.get("usage") is not None:
        answer.usage.append(message["usage"])
    return answer


# Gemini. Source: `GenerateContentResponse` of Google's API reference. Each element has the next parts of candidates,
# `response.text` of google-genai concatenates the texts of parts that are no thoughts, and the last usage counts.


def gemini_answer(elements: list[Json]) -> Answer:
    """Read the elements of a stream, or one reply."""
    answer = Answer()
    for element in elements:
        if "error" in element:
            answer.errors.append(element["error"])
        if "usageMetadata" in element:
            answer.usage = [element["usageMetadata"]]
        for candidate in element.get("candidates", ()):
            choice = answer.choices.setdefault(candidate.get("index", 0), Choice())
            for part in (candidate.get("content") or {}).get("parts") or ():
                _add_gemini_part(choice, part)
            if candidate.get("finishReason"):
                choice.finish.append(candidate["finishReason"])
                answer.is_done = True
    return answer


def _add_gemini_part(choice: Choice, part: Json) -> None:
    if "functionCall" in part:
        call = part["functionCall"]
        choice.calls.append(Call(call.get("id", ""), "function", call["name"], json.dumps(call.get("args", {}))))
    elif "text" in part and part.get("thought"):
        choice.reasoning += part["text"]
    elif "text" in part:
        choice.text += part["text"]
    else:
        choice.parts.append(part)
    if "thoughtSignature" in part:
        choice.members.setdefault("thoughtSignature", []).append(part["thoughtSignature"])


# Ollama. Source: docs/api.md of Ollama: the `content` of each line continues the last; calls are whole; the line with
# `done` has the counts.


def ollama_answer(body: bytes) -> Answer:
    """Read one or more lines of JSON."""
    answer = Answer()
    choice = answer.choices[0] = Choice()
    for line in body.decode().rstrip("\n").split("\n"):
        value = json.loads(line)
        if "error" in value:
            answer.errors.append(value["error"])
            continue
        message = value["message"]
        choice.text += message["content"]
        choice.reasoning += message.get("thinking", "")
        for entry in message.get("tool_calls", []):
            function = entry["function"]
            choice.calls.append(Call("", "function", function["name"], json.dumps(function["arguments"])))
        if value["done"]:
            answer.is_done = True
            choice.finish.append(value["done_reason"])
            answer.usage.append({key: value[key] for key in ("prompt_eval_count", "eval_count") if key in value})
    return answer
