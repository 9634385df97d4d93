"""Anthropic's client for Python: whole messages, raw streams, and its helper `stream()`."""

from collections.abc import Callable
from dataclasses import asdict
from functools import cache

from anthropic import Anthropic, APIStatusError  # type: ignore[import-not-found]  # not in this venv

from tests.clients.programs.job import Job, Said, Saw, Theirs, answer_jobs, told

LIMIT_S = 100.0


@cache
def _kept_client(base_url: str, key: str) -> Theirs:
    """To make one takes longer than most answers. It adds /v1 to its URL itself."""
    return Anthropic(base_url=base_url.removesuffix("/v1"), api_key=key, max_retries=0, timeout=LIMIT_S)


def _client(job: Job) -> Theirs:
    return _kept_client(job.base_url, job.key)


def _request(job: Job, **more: Theirs) -> dict[str, Theirs]:
    messages = [{"role": "user", "content": job.prompt}]
    # It has no parameter for a temperature.
    sampling = {"extra_body": {"temperature": 0}}
    thinking = {name: job.asks[name] for name in ("thinking",) if name in job.asks}
    return {"model": job.model, "messages": messages, "max_tokens": job.max_tokens, **sampling, **thinking, **more}


def _whole(client: Theirs, request: dict[str, Theirs], said: Said) -> list[Theirs]:
    return _read(client.messages.create(**request), said)


def _stream(client: Theirs, request: dict[str, Theirs], said: Said) -> list[Theirs]:
    """The blocks, put together by hand."""
    blocks: list[Theirs] = []
    usage = [0, 0]
    for event in client.messages.create(**request, stream=True):
        if event.type == "message_start":
            usage = _counts(event.message.usage)
        elif event.type == "content_block_start":
            assert event.index == len(blocks)
            blocks.append({**event.content_block.model_dump(exclude_none=True), "written": ""})
        elif event.type == "content_block_delta":
            _add(blocks[event.index], event.delta, said)
        elif event.type == "message_delta":
            said.finish = event.delta.stop_reason
            usage = [_counts(event.usage)[0] or usage[0], event.usage.output_tokens]
        elif event.type == "message_stop":
            said.usage = [*usage, sum(usage)]
    for block in blocks:
        written = block.pop("written")
        if block["type"] == "tool_use":
            said.call(block["name"], written)
            block["input"] = said.calls[-1][1]
    return blocks


def _add(block: Theirs, delta: Theirs, said: Said) -> None:
    if delta.type == "text_delta":
        block["text"] += delta.text
        said.pieces.append(delta.text)
    elif delta.type == "thinking_delta":
        block["thinking"] += delta.thinking
        said.thoughts.append(delta.thinking)
    elif delta.type == "signature_delta":
        block["signature"] = delta.signature
    elif delta.type == "input_json_delta":
        block["written"] += delta.partial_json


def _helper(client: Theirs, request: dict[str, Theirs], said: Said) -> list[Theirs]:
    with client.messages.stream(**request) as stream:
        for event in stream:
            if event.type == "text":
                said.pieces.append(event.text)
        return _read(stream.get_final_message(), said)


READERS: dict[str, Callable[[Theirs, dict[str, Theirs], Said], list[Theirs]]] = {
    "whole": _whole,
    "stream": _stream,
    "helper": _helper,
}


def _read(message: Theirs, said: Said) -> list[Theirs]:
    """All that a whole message says; a text that came in pieces is there already."""
    texts = [block.text for block in message.content if block.type == "text"]
    said.pieces = said.pieces or texts
    said.thoughts = [block.thinking for block in message.content if block.type == "thinking"]
    said.calls = [[block.name, block.input] for block in message.content if block.type == "tool_use"]
    said.finish = message.stop_reason
    counted = _counts(message.usage)
    said.usage = [*counted, sum(counted)]
    return [block.model_dump(exclude_none=True, exclude={"parsed_output"}) for block in message.content]


def _counts(usage: Theirs) -> list[int]:
    """Of the prompt and of the answer. The part of a prompt that was in a cache is counted apart."""
    return [(usage.input_tokens or 0) + (usage.cache_read_input_tokens or 0), usage.output_tokens]


def _ask(job: Job, said: Said, **more: Theirs) -> list[Theirs]:
    return READERS[job.way](_client(job), _request(job, **more), said)


def answer(job: Job) -> Saw:
    said = Said()
    try:
        _ask(job, said)
    except Exception as error:  # noqa: BLE001 - a client that stumbles raises anything
        said.fail(error)
    return asdict(said)


def _tools(job: Job) -> list[Theirs]:
    functions = [tool["function"] for tool in job.tools]
    return [
        {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]} for one in functions
    ]


def call(job: Job) -> Saw:
    """A forced call, and the answer to what the tools said, with all that was said before it."""
    called, answered = Said(), Said()
    messages: list[Theirs] = [{"role": "user", "content": job.question}]
    more: Theirs = {"tools": _tools(job), "tool_choice": {"type": "any"}, "max_tokens": job.call_tokens}
    blocks = _ask(job, called, messages=messages, **more)
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": id_, "content": job.tool_result} for id_ in ids]
    messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    _ask(job, answered, messages=messages, tools=_tools(job), tool_choice={"type": "none"})
    return {"called": asdict(called), "answered": asdict(answered)}


def count(job: Job) -> Saw:
    messages = [{"role": "user", "content": job.prompt}]
    return {"tokens": _client(job).messages.count_tokens(model=job.model, messages=messages).input_tokens}


def models(job: Job) -> Saw:
    return {"models": [model.id for model in _client(job).models.list()]}


def unknown_model(job: Job) -> Saw:
    return _refused(job, model=job.missing_model)


def bad_request(job: Job) -> Saw:
    return _refused(job, extra_body={"temperature": job.bad_temperature})


def _refused(job: Job, **more: Theirs) -> Saw:
    try:
        _ask(job, Said(), **more)
    except APIStatusError as error:
        return told(error, error.status_code)
    return {"error": None}


def cancel(job: Job) -> Saw:
    request = _request(job, messages=[{"role": "user", "content": job.story}], max_tokens=job.story_tokens)
    messages = _client(job).messages
    pieces = 0
    with messages.stream(**request) if job.way == "helper" else messages.create(**request, stream=True) as stream:
        for event in stream:
            pieces += event.type == "content_block_delta"
            if pieces == 2:
                break
    return {"pieces": pieces}


if __name__ == "__main__":
    answer_jobs(
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
