"""OpenAI's Python client without its helpers."""

import json
from functools import cache

from openai import APIStatusError, OpenAI

from tests.clients.programs.job import (
    ClientValue,
    Job,
    Result,
    answer_result,
    catching_errors,
    error_result,
    serve_jobs,
)

LIMIT_S = 100.0


def _client(job: Job) -> OpenAI:
    return OpenAI(base_url=job.base_url, api_key=job.key, max_retries=0, timeout=LIMIT_S)


def _send(client: OpenAI, job: Job, **overrides: ClientValue) -> ClientValue:
    options = {"model": job.model, "messages": [{"role": "user", "content": job.prompt}], "max_tokens": job.max_tokens}
    return client.chat.completions.create(**{"temperature": 0, **options, **overrides})


def text(job: Job) -> Result:
    pieces = []
    finish = []
    with _client(job) as client:
        for chunk in _send(client, job, stream=True):
            pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
            finish += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
        whole = _send(client, job).choices[0]
    return {
        "streamed": "".join(pieces),
        "pieces": len(pieces),
        "whole": whole.message.content,
        "finish": [*finish, whole.finish_reason],
    }


def usage(job: Job) -> Result:
    with _client(job) as client:
        stream = _send(client, job, stream=True, stream_options={"include_usage": True})
        counts = [chunk.usage for chunk in stream if chunk.usage]
        whole = _send(client, job).usage
    return {"streamed": [_counts(usage) for usage in counts], "whole": _counts(whole)}


def _counts(usage: ClientValue) -> list[int]:
    return [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]


def tool_named(job: Job) -> Result:
    name = job.tools[0]["function"]["name"]
    return _call_and_answer(job, {"type": "function", "function": {"name": name}})


def tool_required(job: Job) -> Result:
    return _call_and_answer(job, "required")


def _call_and_answer(job: Job, choice: ClientValue) -> Result:
    """Force a tool call, then send its result."""
    messages: list[ClientValue] = [{"role": "user", "content": job.question}]
    with _client(job) as client:
        called = {"tools": job.tools, "tool_choice": choice, "max_tokens": job.call_tokens}
        message = _send(client, job, messages=messages, **called).choices[0].message
        calls = message.tool_calls or []
        messages.append(message.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": job.tool_result} for call in calls]
        answer = _send(client, job, tools=job.tools, messages=messages, tool_choice="none").choices[0].message
    return {"calls": [_call(call.function) for call in calls], "answer": answer.content}


def _call(function: ClientValue) -> list[ClientValue]:
    return [function.name, json.loads(function.arguments)]


def tool_stream(job: Job) -> Result:
    """Join the arguments of a call by hand, as the API documentation describes."""
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    messages = [{"role": "user", "content": job.question}]
    called = {"tools": job.tools, "tool_choice": "required", "max_tokens": job.call_tokens}
    with _client(job) as client:
        for chunk in _send(client, job, messages=messages, stream=True, **called):
            for call in [call for choice in chunk.choices for call in choice.delta.tool_calls or []]:
                names[call.index] = names.get(call.index, "") + (call.function.name or "")
                arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    return {"calls": [[names[index], json.loads(arguments[index])] for index in names]}


def unknown_model(job: Job) -> Result:
    return _error_of(job, model=job.missing_model)


def unknown_model_stream(job: Job) -> Result:
    return _error_of(job, model=job.missing_model, stream=True)


def bad_request(job: Job) -> Result:
    return _error_of(job, temperature=job.bad_temperature)


def _error_of(job: Job, **overrides: ClientValue) -> Result:
    with _client(job) as client:
        try:
            _send(client, job, **overrides)
        except APIStatusError as error:
            return error_result(error, error.status_code)
    return {"error": None}


def cancel(job: Job) -> Result:
    story = [{"role": "user", "content": job.story}]
    pieces = 0
    client = _client(job)
    stream = _send(client, job, messages=story, max_tokens=job.story_tokens, stream=True)
    for chunk in stream:
        pieces += sum(1 for choice in chunk.choices if choice.delta.content)
        if pieces == 2:
            break
    stream.close()
    return {"pieces": pieces}


@cache
def _cached_client(base_url: str, key: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=LIMIT_S)


def read(job: Job) -> Result:
    client = _cached_client(job.base_url, job.key)
    answer: ClientValue
    if job.endpoint == "chat":
        messages: ClientValue = [{"role": "user", "content": job.prompt}]
        answer = client.chat.completions.create(model=job.model, messages=messages, **job.parameters)
    else:
        answer = client.completions.create(**{"model": job.model, "prompt": job.prompt, **job.parameters})
    if job.is_stream:
        return _accumulate(answer)
    return answer_result([_choice(choice) for choice in answer.choices], answer.usage and _counts(answer.usage))


def _choice(choice: ClientValue) -> list[ClientValue]:
    if not hasattr(choice, "message"):
        return [choice.text, [], choice.finish_reason]
    calls = choice.message.tool_calls or []
    call_parts = [[call.function.name, call.function.arguments] for call in calls]
    return [choice.message.content or "", call_parts, choice.finish_reason]


def _accumulate(stream: ClientValue) -> Result:
    choices: dict[int, list[ClientValue]] = {}
    usage = None
    for chunk in stream:
        usage = _counts(chunk.usage) if chunk.usage else usage
        for choice in chunk.choices:
            parts = choices.setdefault(choice.index, ["", {}, None])
            parts[0] += choice.delta.content or "" if hasattr(choice, "delta") else choice.text
            parts[2] = choice.finish_reason or parts[2]
            for call in (choice.delta.tool_calls or []) if hasattr(choice, "delta") else []:
                call_parts = parts[1].setdefault(call.index, ["", ""])
                call_parts[0] += call.function.name or ""
                call_parts[1] += call.function.arguments or ""
    collected = [choices[index] for index in sorted(choices)]
    return answer_result([[text, list(calls.values()), finish] for text, calls, finish in collected], usage)


if __name__ == "__main__":
    serve_jobs(
        {
            "text": text,
            "usage": usage,
            "tool_named": tool_named,
            "tool_required": tool_required,
            "tool_stream": tool_stream,
            "unknown_model": unknown_model,
            "unknown_model_stream": unknown_model_stream,
            "bad_request": bad_request,
            "cancel": cancel,
            "read": catching_errors(read),
        }
    )
