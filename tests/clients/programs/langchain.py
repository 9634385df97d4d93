"""langchain-openai: a chat model, its tools and its structured output."""

from langchain_core.messages import HumanMessage, ToolMessage  # type: ignore[import-not-found]  # not in this venv
from langchain_openai import ChatOpenAI, OpenAI  # type: ignore[import-not-found]  # not in this venv
from openai import APIStatusError
from pydantic import BaseModel

from tests.clients.programs.job import (
    City,
    ClientValue,
    Days,
    Job,
    Result,
    answer_result,
    catching_errors,
    error_result,
    serve_jobs,
)

LIMIT_S = 100.0


class Trip(BaseModel):
    """City and days of the question."""

    city: City
    days: Days


def _chat(job: Job, **overrides: ClientValue) -> ClientValue:
    options = {"model": job.model, "temperature": 0, "max_tokens": job.max_tokens, "timeout": LIMIT_S, **overrides}
    return ChatOpenAI(base_url=job.base_url, api_key=job.key, max_retries=0, **options)


def text(job: Job) -> Result:
    pieces = []
    finish = []
    for chunk in _chat(job).stream(job.prompt):
        pieces += [chunk.content] if chunk.content else []
        finish += [chunk.response_metadata["finish_reason"]] if "finish_reason" in chunk.response_metadata else []
    whole = _chat(job).invoke(job.prompt)
    return {
        "streamed": "".join(pieces),
        "pieces": len(pieces),
        "whole": whole.content,
        "finish": [*finish, whole.response_metadata["finish_reason"]],
    }


def usage(job: Job) -> Result:
    counts = [
        chunk.usage_metadata for chunk in _chat(job, stream_usage=True).stream(job.prompt) if chunk.usage_metadata
    ]
    whole = _chat(job).invoke(job.prompt).usage_metadata
    return {"streamed": [_counts(usage) for usage in counts], "whole": _counts(whole)}


def _counts(usage: ClientValue) -> list[int]:
    return [usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]]


def tool_named(job: Job) -> Result:
    return _call_and_answer(job, job.tools[0]["function"]["name"])


def tool_required(job: Job) -> Result:
    return _call_and_answer(job, "any")


def _call_and_answer(job: Job, choice: str) -> Result:
    """Force a tool call, then send its result."""
    messages = [HumanMessage(job.question)]
    message = _chat(job, max_tokens=job.call_tokens).bind_tools(job.tools, tool_choice=choice).invoke(messages)
    results = [ToolMessage(job.tool_result, tool_call_id=call["id"]) for call in message.tool_calls]
    answer = _chat(job).bind_tools(job.tools, tool_choice="none").invoke([*messages, message, *results])
    return {"calls": _calls(message), "answer": answer.content}


def _calls(message: ClientValue) -> list[ClientValue]:
    assert not message.invalid_tool_calls, message.invalid_tool_calls
    return [[call["name"], call["args"]] for call in message.tool_calls]


def tool_stream(job: Job) -> Result:
    """LangChain accumulates the chunks itself."""
    chat = _chat(job, max_tokens=job.call_tokens).bind_tools(job.tools, tool_choice="any")
    first, *others = chat.stream(job.question)
    return {"calls": _calls(sum(others, start=first))}


def structured(job: Job) -> Result:
    chat = _chat(job, max_tokens=job.call_tokens)
    models = [chat.with_structured_output(Trip, method=method) for method in ("json_schema", "function_calling")]
    return {"places": [model.invoke(job.question).model_dump() for model in models]}


def unknown_model(job: Job) -> Result:
    return _error_of(job, model=job.missing_model)


def bad_request(job: Job) -> Result:
    return _error_of(job, temperature=job.bad_temperature)


def _error_of(job: Job, **overrides: ClientValue) -> Result:
    try:
        _chat(job, **overrides).invoke(job.prompt)
    except APIStatusError as error:
        return error_result(error, error.status_code)
    return {"error": None}


def cancel(job: Job) -> Result:
    pieces = 0
    stream = _chat(job, max_tokens=job.story_tokens).stream(job.story)
    for chunk in stream:
        pieces += bool(chunk.content)
        if pieces == 2:
            break
    stream.close()
    return {"pieces": pieces}


def read(job: Job) -> Result:
    connection = {
        "model": job.model,
        "base_url": job.base_url,
        "api_key": job.key,
        "max_retries": 0,
        "timeout": LIMIT_S,
    }
    if job.endpoint == "completions":
        return _completed(OpenAI(**connection, streaming=job.is_stream).generate([job.prompt]))
    overrides = {key: value for key, value in job.parameters.items() if key not in ("stream", "stream_options")}
    if {"tools", "response_format"} <= overrides.keys():
        overrides["tools"] = job.strict_tools  # LangChain then parses both
    chat = ChatOpenAI(**connection, stream_usage=job.requests_usage).bind(**overrides)
    if job.is_stream:
        first, *others = chat.stream(job.prompt)
        message = sum(others, start=first)
        calls = [[call["name"], call["args"]] for call in message.tool_call_chunks]
    else:
        message = chat.invoke(job.prompt)
        calls = [[call["name"], call["args"]] for call in (*message.tool_calls, *message.invalid_tool_calls)]
    counted = message.usage_metadata and _counts(message.usage_metadata)
    return answer_result([[message.content, calls, message.response_metadata.get("finish_reason")]], counted)


def _completed(result: ClientValue) -> Result:
    """Read the result of `OpenAI.generate`; it has no usage for streams."""
    choices = [[part.text, [], part.generation_info.get("finish_reason")] for part in result.generations[0]]
    counted = (result.llm_output or {}).get("token_usage")
    return answer_result(
        choices, [counted[f"{name}_tokens"] for name in ("prompt", "completion", "total")] if counted else None
    )


if __name__ == "__main__":
    serve_jobs(
        {
            "text": text,
            "usage": usage,
            "tool_named": tool_named,
            "tool_required": tool_required,
            "tool_stream": tool_stream,
            "structured": structured,
            "unknown_model": unknown_model,
            "bad_request": bad_request,
            "cancel": cancel,
            "read": catching_errors(read),
        }
    )
