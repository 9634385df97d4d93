"""The official client for Python, without its helpers."""

import json
from functools import cache

from openai import APIStatusError, OpenAI

from tests.clients.programs.job import Job, Saw, Theirs, answer_jobs, heard, telling, told

LIMIT_S = 100.0


def _client(job: Job) -> OpenAI:
    return OpenAI(base_url=job.base_url, api_key=job.key, max_retries=0, timeout=LIMIT_S)


def _ask(client: OpenAI, job: Job, **more: Theirs) -> Theirs:
    given = {"model": job.model, "messages": [{"role": "user", "content": job.prompt}], "max_tokens": job.max_tokens}
    return client.chat.completions.create(**{"temperature": 0, **given, **more})


def text(job: Job) -> Saw:
    pieces = []
    finish = []
    with _client(job) as client:
        for chunk in _ask(client, job, stream=True):
            pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
            finish += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
        whole = _ask(client, job).choices[0]
    return {
        "streamed": "".join(pieces),
        "pieces": len(pieces),
        "whole": whole.message.content,
        "finish": [*finish, whole.finish_reason],
    }


def usage(job: Job) -> Saw:
    with _client(job) as client:
        stream = _ask(client, job, stream=True, stream_options={"include_usage": True})
        heard = [chunk.usage for chunk in stream if chunk.usage]
        whole = _ask(client, job).usage
    return {"streamed": [_counts(one) for one in heard], "whole": _counts(whole)}


def _counts(one: Theirs) -> list[int]:
    return [one.prompt_tokens, one.completion_tokens, one.total_tokens]


def tool_named(job: Job) -> Saw:
    name = job.tools[0]["function"]["name"]
    return _call_and_answer(job, {"type": "function", "function": {"name": name}})


def tool_required(job: Job) -> Saw:
    return _call_and_answer(job, "required")


def _call_and_answer(job: Job, choice: Theirs) -> Saw:
    """A forced call, and the answer to what the tool said."""
    messages: list[Theirs] = [{"role": "user", "content": job.question}]
    with _client(job) as client:
        called = {"tools": job.tools, "tool_choice": choice, "max_tokens": job.call_tokens}
        message = _ask(client, job, messages=messages, **called).choices[0].message
        calls = message.tool_calls or []
        messages.append(message.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": job.tool_result} for call in calls]
        answer = _ask(client, job, tools=job.tools, messages=messages, tool_choice="none").choices[0].message
    return {"calls": [_call(call.function) for call in calls], "answer": answer.content}


def _call(function: Theirs) -> list[Theirs]:
    return [function.name, json.loads(function.arguments)]


def tool_stream(job: Job) -> Saw:
    """The arguments of a call, joined by hand as the documentation of the API says."""
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    messages = [{"role": "user", "content": job.question}]
    called = {"tools": job.tools, "tool_choice": "required", "max_tokens": job.call_tokens}
    with _client(job) as client:
        for chunk in _ask(client, job, messages=messages, stream=True, **called):
            for call in [call for choice in chunk.choices for call in choice.delta.tool_calls or []]:
                names[call.index] = names.get(call.index, "") + (call.function.name or "")
                arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    return {"calls": [[names[index], json.loads(arguments[index])] for index in names]}


def unknown_model(job: Job) -> Saw:
    return _refused(job, model=job.missing_model)


def unknown_model_stream(job: Job) -> Saw:
    return _refused(job, model=job.missing_model, stream=True)


def bad_request(job: Job) -> Saw:
    return _refused(job, temperature=job.bad_temperature)


def _refused(job: Job, **more: Theirs) -> Saw:
    with _client(job) as client:
        try:
            _ask(client, job, **more)
        except APIStatusError as error:
            return told(error, error.status_code)
    return {"error": None}


def cancel(job: Job) -> Saw:
    story = [{"role": "user", "content": job.story}]
    pieces = 0
    client = _client(job)
    stream = _ask(client, job, messages=story, max_tokens=job.story_tokens, stream=True)
    for chunk in stream:
        pieces += sum(1 for choice in chunk.choices if choice.delta.content)
        if pieces == 2:
            break
    stream.close()
    return {"pieces": pieces}


@cache
def _kept_client(base_url: str, key: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=LIMIT_S)


def read(job: Job) -> Saw:
    client = _kept_client(job.base_url, job.key)
    answer: Theirs
    if job.endpoint == "chat":
        messages: Theirs = [{"role": "user", "content": job.prompt}]
        answer = client.chat.completions.create(model=job.model, messages=messages, **job.asks)
    else:
        answer = client.completions.create(**{"model": job.model, "prompt": job.prompt, **job.asks})
    if job.is_stream:
        return _added_up(answer)
    return heard([_choice(choice) for choice in answer.choices], answer.usage and _counts(answer.usage))


def _choice(choice: Theirs) -> list[Theirs]:
    if not hasattr(choice, "message"):
        return [choice.text, [], choice.finish_reason]
    calls = choice.message.tool_calls or []
    made = [[call.function.name, call.function.arguments] for call in calls]
    return [choice.message.content or "", made, choice.finish_reason]


def _added_up(stream: Theirs) -> Saw:
    choices: dict[int, list[Theirs]] = {}
    usage = None
    for chunk in stream:
        usage = _counts(chunk.usage) if chunk.usage else usage
        for choice in chunk.choices:
            mine = choices.setdefault(choice.index, ["", {}, None])
            mine[0] += choice.delta.content or "" if hasattr(choice, "delta") else choice.text
            mine[2] = choice.finish_reason or mine[2]
            for call in (choice.delta.tool_calls or []) if hasattr(choice, "delta") else []:
                made = mine[1].setdefault(call.index, ["", ""])
                made[0] += call.function.name or ""
                made[1] += call.function.arguments or ""
    said = [choices[index] for index in sorted(choices)]
    return heard([[text, list(calls.values()), finish] for text, calls, finish in said], usage)


if __name__ == "__main__":
    answer_jobs(
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
            "read": telling(read),
        }
    )
