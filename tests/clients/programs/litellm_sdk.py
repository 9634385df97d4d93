"""litellm as a library: completions, tools, and its own names for errors."""

import asyncio
import json

import litellm  # type: ignore[import-not-found]  # not in this venv

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


def _request(job: Job, **overrides: ClientValue) -> dict[str, ClientValue]:
    connection = {"base_url": job.base_url, "api_key": job.key, "max_retries": 0, "timeout": LIMIT_S}
    content = {"model": job.model, "messages": [{"role": "user", "content": job.prompt}], "max_tokens": job.max_tokens}
    options = {**connection, **content, "temperature": 0, **overrides}
    # The prefix selects the API of the server.
    return {**options, "model": f"openai/{options['model']}"}


def text(job: Job) -> Result:
    pieces = []
    finish = []
    for chunk in litellm.completion(**_request(job, stream=True)):
        pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
        finish += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
    whole = litellm.completion(**_request(job)).choices[0]
    return {
        "streamed": "".join(pieces),
        "pieces": len(pieces),
        "whole": whole.message.content,
        "finish": [*finish, whole.finish_reason],
    }


def usage(job: Job) -> Result:
    chunks = list(litellm.completion(**_request(job, stream=True, stream_options={"include_usage": True})))
    counts = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    whole = litellm.completion(**_request(job)).usage
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
    request = _request(job, tools=job.tools, max_tokens=job.call_tokens, messages=messages, tool_choice=choice)
    message = litellm.completion(**request).choices[0].message
    calls = message.tool_calls or []
    messages.append(message)
    messages += [{"role": "tool", "tool_call_id": call.id, "content": job.tool_result} for call in calls]
    request = _request(job, tools=job.tools, messages=messages, tool_choice="none")
    answer = litellm.completion(**request).choices[0].message
    return {"calls": _calls(message), "answer": answer.content}


def _calls(message: ClientValue) -> list[ClientValue]:
    return [[call.function.name, json.loads(call.function.arguments)] for call in message.tool_calls or []]


def tool_stream(job: Job) -> Result:
    """LiteLLM accumulates the chunks itself."""
    messages = [{"role": "user", "content": job.question}]
    request = _request(job, tools=job.tools, max_tokens=job.call_tokens, messages=messages, tool_choice="required")
    whole = litellm.stream_chunk_builder(list(litellm.completion(**request, stream=True)))
    return {"calls": _calls(whole.choices[0].message)}


def unknown_model(job: Job) -> Result:
    return _error_of(job, model=job.missing_model)


def bad_request(job: Job) -> Result:
    return _error_of(job, temperature=job.bad_temperature)


def _error_of(job: Job, **overrides: ClientValue) -> Result:
    try:
        litellm.completion(**_request(job, **overrides))
    except (litellm.NotFoundError, litellm.BadRequestError) as error:
        return error_result(error, error.status_code)
    return {"error": None}


def cancel(job: Job) -> Result:
    return asyncio.run(_cancel(job))


async def _cancel(job: Job) -> Result:
    """Only its async streams can be closed."""
    pieces = 0
    story = [{"role": "user", "content": job.story}]
    stream = await litellm.acompletion(**_request(job, messages=story, max_tokens=job.story_tokens, stream=True))
    async for chunk in stream:
        pieces += sum(1 for choice in chunk.choices if choice.delta.content)
        if pieces == 2:
            break
    await stream.aclose()
    return {"pieces": pieces}


def read(job: Job) -> Result:
    """LiteLLM accumulates the chunks itself."""
    connection = {"base_url": job.base_url, "api_key": job.key, "max_retries": 0, "timeout": LIMIT_S}
    if job.endpoint == "completions":
        answer = litellm.text_completion(
            **{**connection, "model": f"text-completion-openai/{job.model}", "prompt": job.prompt, **job.parameters}
        )
    else:
        messages = [{"role": "user", "content": job.prompt}]
        answer = litellm.completion(**connection, model=f"openai/{job.model}", messages=messages, **job.parameters)
    if job.is_stream and job.endpoint == "completions":
        return _joined(answer)
    if job.is_stream:
        answer = litellm.stream_chunk_builder(list(answer))
    counted = getattr(answer, "usage", None)
    return answer_result([_choice(choice) for choice in answer.choices], counted and _counts(counted))


def _choice(choice: ClientValue) -> list[ClientValue]:
    if not hasattr(choice, "message"):
        return [choice.text, [], choice.finish_reason]
    calls = [[call.function.name, call.function.arguments] for call in choice.message.tool_calls or []]
    return [choice.message.content or "", calls, choice.finish_reason]


def _joined(stream: ClientValue) -> Result:
    """Join the chunks of a text completion, which LiteLLM does not accumulate."""
    choices: dict[int, list[ClientValue]] = {}
    usage = None
    for chunk in stream:
        usage = getattr(chunk, "usage", None) or usage
        for choice in chunk.choices:
            parts = choices.setdefault(choice.index, ["", [], None])
            parts[0] += choice.text or ""
            parts[2] = choice.finish_reason or parts[2]
    return answer_result([choices[index] for index in sorted(choices)], usage and _counts(usage))


if __name__ == "__main__":
    serve_jobs(
        {
            "text": text,
            "usage": usage,
            "tool_named": tool_named,
            "tool_required": tool_required,
            "tool_stream": tool_stream,
            "unknown_model": unknown_model,
            "bad_request": bad_request,
            "cancel": cancel,
            "read": catching_errors(read),
        }
    )
