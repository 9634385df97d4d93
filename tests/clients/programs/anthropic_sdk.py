"""Anthropic's Python client: buffered messages, raw streams, and the helper `stream()`."""

from collections.abc import Callable
from dataclasses import asdict
from functools import cache

from anthropic import Anthropic, APIStatusError  # type: ignore[import-not-found]  # not in this venv

from tests.clients.programs.job import ClientValue, Job, Result, ShownAnswer, error_result, serve_jobs

LIMIT_S = 100.0


@cache
def _cached_client(base_url: str, key: str) -> ClientValue:
    """Cached: creating a client takes longer than most answers. The client appends /v1 to the URL itself."""
    return Anthropic(base_url=base_url.removesuffix("/v1"), api_key=key, max_retries=0, timeout=LIMIT_S)


def _client(job: Job) -> ClientValue:
    return _cached_client(job.base_url, job.key)


def _request(job: Job, **overrides: ClientValue) -> dict[str, ClientValue]:
    messages = [{"role": "user", "content": job.prompt}]
    # The SDK has no parameter for the temperature.
    sampling = {"extra_body": {"temperature": 0}}
    thinking = {name: job.parameters[name] for name in ("thinking",) if name in job.parameters}
    return {"model": job.model, "messages": messages, "max_tokens": job.max_tokens, **sampling, **thinking, **overrides}


def _whole(client: ClientValue, request: dict[str, ClientValue], shown: ShownAnswer) -> list[ClientValue]:
    return _read(client.messages.create(**request), shown)


def _stream(client: ClientValue, request: dict[str, ClientValue], shown: ShownAnswer) -> list[ClientValue]:
    """Accumulate the content blocks by hand."""
    blocks: list[ClientValue] = []
    usage = [0, 0]
    for event in client.messages.create(**request, stream=True):
        if event.type == "message_start":
            usage = _counts(event.message.usage)
        elif event.type == "content_block_start":
            assert event.index == len(blocks)
            blocks.append({**event.content_block.model_dump(exclude_none=True), "written": ""})
        elif event.type == "content_block_delta":
            _add(blocks[event.index], event.delta, shown)
        elif event.type == "message_delta":
            shown.finish = event.delta.stop_reason
            usage = [_counts(event.usage)[0] or usage[0], event.usage.output_tokens]
        elif event.type == "message_stop":
            shown.usage = [*usage, sum(usage)]
    for block in blocks:
        written = block.pop("written")
        if block["type"] == "tool_use":
            shown.call(block["name"], written)
            block["input"] = shown.calls[-1][1]
    return blocks


def _add(block: ClientValue, delta: ClientValue, shown: ShownAnswer) -> None:
    if delta.type == "text_delta":
        block["text"] += delta.text
        shown.pieces.append(delta.text)
    elif delta.type == "thinking_delta":
        block["thinking"] += delta.thinking
        shown.thoughts.append(delta.thinking)
    elif delta.type == "signature_delta":
        block["signature"] = delta.signature
    elif delta.type == "input_json_delta":
        block["written"] += delta.partial_json


def _helper(client: ClientValue, request: dict[str, ClientValue], shown: ShownAnswer) -> list[ClientValue]:
    with client.messages.stream(**request) as stream:
        for event in stream:
            if event.type == "text":
                shown.pieces.append(event.text)
        return _read(stream.get_final_message(), shown)


READERS: dict[str, Callable[[ClientValue, dict[str, ClientValue], ShownAnswer], list[ClientValue]]] = {
    "whole": _whole,
    "stream": _stream,
    "helper": _helper,
}


def _read(message: ClientValue, shown: ShownAnswer) -> list[ClientValue]:
    """Read a complete message; text that was streamed is already recorded."""
    texts = [block.text for block in message.content if block.type == "text"]
    shown.pieces = shown.pieces or texts
    shown.thoughts = [block.thinking for block in message.content if block.type == "thinking"]
    shown.calls = [[block.name, block.input] for block in message.content if block.type == "tool_use"]
    shown.finish = message.stop_reason
    counted = _counts(message.usage)
    shown.usage = [*counted, sum(counted)]
    return [block.model_dump(exclude_none=True, exclude={"parsed_output"}) for block in message.content]


def _counts(usage: ClientValue) -> list[int]:
    """Prompt and completion tokens. The API counts cached prompt tokens separately."""
    return [(usage.input_tokens or 0) + (usage.cache_read_input_tokens or 0), usage.output_tokens]


def _send(job: Job, shown: ShownAnswer, **overrides: ClientValue) -> list[ClientValue]:
    return READERS[job.mode](_client(job), _request(job, **overrides), shown)


def answer(job: Job) -> Result:
    shown = ShownAnswer()
    try:
        _send(job, shown)
    except Exception as error:  # noqa: BLE001 - a client may raise anything
        shown.fail(error)
    return asdict(shown)


def _tools(job: Job) -> list[ClientValue]:
    functions = [tool["function"] for tool in job.tools]
    return [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
        for tool in functions
    ]


def call(job: Job) -> Result:
    """Force a tool call, then send its result with the whole conversation."""
    called, answered = ShownAnswer(), ShownAnswer()
    messages: list[ClientValue] = [{"role": "user", "content": job.question}]
    overrides: ClientValue = {"tools": _tools(job), "tool_choice": {"type": "any"}, "max_tokens": job.call_tokens}
    blocks = _send(job, called, messages=messages, **overrides)
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": id_, "content": job.tool_result} for id_ in ids]
    messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    _send(job, answered, messages=messages, tools=_tools(job), tool_choice={"type": "none"})
    return {"called": asdict(called), "answered": asdict(answered)}


def count(job: Job) -> Result:
    messages = [{"role": "user", "content": job.prompt}]
    return {"tokens": _client(job).messages.count_tokens(model=job.model, messages=messages).input_tokens}


def models(job: Job) -> Result:
    return {"models": [model.id for model in _client(job).models.list()]}


def unknown_model(job: Job) -> Result:
    return _error_of(job, model=job.missing_model)


def bad_request(job: Job) -> Result:
    return _error_of(job, extra_body={"temperature": job.bad_temperature})


def _error_of(job: Job, **overrides: ClientValue) -> Result:
    try:
        _send(job, ShownAnswer(), **overrides)
    except APIStatusError as error:
        return error_result(error, error.status_code)
    return {"error": None}


def cancel(job: Job) -> Result:
    request = _request(job, messages=[{"role": "user", "content": job.story}], max_tokens=job.story_tokens)
    messages = _client(job).messages
    pieces = 0
    with messages.stream(**request) if job.mode == "helper" else messages.create(**request, stream=True) as stream:
        for event in stream:
            pieces += event.type == "content_block_delta"
            if pieces == 2:
                break
    return {"pieces": pieces}


if __name__ == "__main__":
    serve_jobs(
        {
            "answer": answer,
            "call": call,
            "count": count,
            "models": models,
            "unknown_model": unknown_model,
            "bad_request": bad_request,
            "cancel": cancel,
        }
    )
