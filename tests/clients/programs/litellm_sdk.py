"""litellm as a library: completions, tools, and its own names for errors."""

import asyncio
import json

import litellm  # type: ignore[import-not-found]  # not in this venv

from tests.clients.programs.job import Job, Saw, Theirs, answer_jobs, heard, telling, told

LIMIT_S = 100.0


def _request(job: Job, **more: Theirs) -> dict[str, Theirs]:
    where = {"base_url": job.base_url, "api_key": job.key, "max_retries": 0, "timeout": LIMIT_S}
    what = {"model": job.model, "messages": [{"role": "user", "content": job.prompt}], "max_tokens": job.max_tokens}
    given = {**where, **what, "temperature": 0, **more}
    # The prefix says which API the server speaks.
    return {**given, "model": f"openai/{given['model']}"}


def text(job: Job) -> Saw:
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


def usage(job: Job) -> Saw:
    chunks = list(litellm.completion(**_request(job, stream=True, stream_options={"include_usage": True})))
    heard = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    whole = litellm.completion(**_request(job)).usage
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
    asked = _request(job, tools=job.tools, max_tokens=job.call_tokens, messages=messages, tool_choice=choice)
    message = litellm.completion(**asked).choices[0].message
    calls = message.tool_calls or []
    messages.append(message)
    messages += [{"role": "tool", "tool_call_id": call.id, "content": job.tool_result} for call in calls]
    asked = _request(job, tools=job.tools, messages=messages, tool_choice="none")
    answer = litellm.completion(**asked).choices[0].message
    return {"calls": _calls(message), "answer": answer.content}


def _calls(message: Theirs) -> list[Theirs]:
    return [[call.function.name, json.loads(call.function.arguments)] for call in message.tool_calls or []]


def tool_stream(job: Job) -> Saw:
    """litellm adds its chunks up itself."""
    messages = [{"role": "user", "content": job.question}]
    asked = _request(job, tools=job.tools, max_tokens=job.call_tokens, messages=messages, tool_choice="required")
    whole = litellm.stream_chunk_builder(list(litellm.completion(**asked, stream=True)))
    return {"calls": _calls(whole.choices[0].message)}


def unknown_model(job: Job) -> Saw:
    return _refused(job, model=job.missing_model)


def bad_request(job: Job) -> Saw:
    return _refused(job, temperature=job.bad_temperature)


def _refused(job: Job, **more: Theirs) -> Saw:
    try:
        litellm.completion(**_request(job, **more))
    except (litellm.NotFoundError, litellm.BadRequestError) as error:
        return told(error, error.status_code)
    return {"error": None}


def cancel(job: Job) -> Saw:
    return asyncio.run(_cancel(job))


async def _cancel(job: Job) -> Saw:
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


def read(job: Job) -> Saw:
    """litellm adds its chunks up itself."""
    where = {"base_url": job.base_url, "api_key": job.key, "max_retries": 0, "timeout": LIMIT_S}
    if job.endpoint == "completions":
        answer = litellm.text_completion(
            **{**where, "model": f"text-completion-openai/{job.model}", "prompt": job.prompt, **job.asks}
        )
    else:
        messages = [{"role": "user", "content": job.prompt}]
        answer = litellm.completion(**where, model=f"openai/{job.model}", messages=messages, **job.asks)
    if job.is_stream and job.endpoint == "completions":
        return _joined(answer)
    if job.is_stream:
        answer = litellm.stream_chunk_builder(list(answer))
    counted = getattr(answer, "usage", None)
    return heard([_choice(choice) for choice in answer.choices], counted and _counts(counted))


def _choice(choice: Theirs) -> list[Theirs]:
    if not hasattr(choice, "message"):
        return [choice.text, [], choice.finish_reason]
    calls = [[call.function.name, call.function.arguments] for call in choice.message.tool_calls or []]
    return [choice.message.content or "", calls, choice.finish_reason]


def _joined(stream: Theirs) -> Saw:
    """Pieces of text it leaves to its user."""
    choices: dict[int, list[Theirs]] = {}
    usage = None
    for chunk in stream:
        usage = getattr(chunk, "usage", None) or usage
        for choice in chunk.choices:
            mine = choices.setdefault(choice.index, ["", [], None])
            mine[0] += choice.text or ""
            mine[2] = choice.finish_reason or mine[2]
    return heard([choices[index] for index in sorted(choices)], usage and _counts(usage))


if __name__ == "__main__":
    answer_jobs(
        {
            "text": text,
            "usage": usage,
            "tool_named": tool_named,
            "tool_required": tool_required,
            "tool_stream": tool_stream,
            "unknown_model": unknown_model,
            "bad_request": bad_request,
            "cancel": cancel,
            "read": telling(read),
        }
    )
