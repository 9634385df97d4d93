"""langchain-openai: a chat model, its tools and its structured output."""

from langchain_core.messages import HumanMessage, ToolMessage  # type: ignore[import-not-found]  # not in this venv
from langchain_openai import ChatOpenAI, OpenAI  # type: ignore[import-not-found]  # not in this venv
from openai import APIStatusError
from pydantic import BaseModel

from tests.clients.programs.job import City, Days, Job, Saw, Theirs, answer_jobs, heard, telling, told

LIMIT_S = 100.0


class Place(BaseModel):
    """The place and the days that the question is about."""

    city: City
    days: Days


def _chat(job: Job, **more: Theirs) -> Theirs:
    given = {"model": job.model, "temperature": 0, "max_tokens": job.max_tokens, "timeout": LIMIT_S, **more}
    return ChatOpenAI(base_url=job.base_url, api_key=job.key, max_retries=0, **given)


def text(job: Job) -> Saw:
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


def usage(job: Job) -> Saw:
    heard = [chunk.usage_metadata for chunk in _chat(job, stream_usage=True).stream(job.prompt) if chunk.usage_metadata]
    whole = _chat(job).invoke(job.prompt).usage_metadata
    return {"streamed": [_counts(one) for one in heard], "whole": _counts(whole)}


def _counts(one: Theirs) -> list[int]:
    return [one["input_tokens"], one["output_tokens"], one["total_tokens"]]


def tool_named(job: Job) -> Saw:
    return _call_and_answer(job, job.tools[0]["function"]["name"])


def tool_required(job: Job) -> Saw:
    return _call_and_answer(job, "any")


def _call_and_answer(job: Job, choice: str) -> Saw:
    """A forced call, and the answer to what the tool said."""
    asked = [HumanMessage(job.question)]
    said = _chat(job, max_tokens=job.call_tokens).bind_tools(job.tools, tool_choice=choice).invoke(asked)
    results = [ToolMessage(job.tool_result, tool_call_id=call["id"]) for call in said.tool_calls]
    answer = _chat(job).bind_tools(job.tools, tool_choice="none").invoke([*asked, said, *results])
    return {"calls": _calls(said), "answer": answer.content}


def _calls(message: Theirs) -> list[Theirs]:
    assert not message.invalid_tool_calls, message.invalid_tool_calls
    return [[call["name"], call["args"]] for call in message.tool_calls]


def tool_stream(job: Job) -> Saw:
    """langchain adds its chunks up itself."""
    chat = _chat(job, max_tokens=job.call_tokens).bind_tools(job.tools, tool_choice="any")
    first, *others = chat.stream(job.question)
    return {"calls": _calls(sum(others, start=first))}


def structured(job: Job) -> Saw:
    chat = _chat(job, max_tokens=job.call_tokens)
    ways = [chat.with_structured_output(Place, method=method) for method in ("json_schema", "function_calling")]
    return {"places": [way.invoke(job.question).model_dump() for way in ways]}


def unknown_model(job: Job) -> Saw:
    return _refused(job, model=job.missing_model)


def bad_request(job: Job) -> Saw:
    return _refused(job, temperature=job.bad_temperature)


def _refused(job: Job, **more: Theirs) -> Saw:
    try:
        _chat(job, **more).invoke(job.prompt)
    except APIStatusError as error:
        return told(error, error.status_code)
    return {"error": None}


def cancel(job: Job) -> Saw:
    pieces = 0
    stream = _chat(job, max_tokens=job.story_tokens).stream(job.story)
    for chunk in stream:
        pieces += bool(chunk.content)
        if pieces == 2:
            break
    stream.close()
    return {"pieces": pieces}


def read(job: Job) -> Saw:
    where = {"model": job.model, "base_url": job.base_url, "api_key": job.key, "max_retries": 0, "timeout": LIMIT_S}
    if job.endpoint == "completions":
        return _completed(OpenAI(**where, streaming=job.is_stream).generate([job.prompt]))
    more = {key: value for key, value in job.asks.items() if key not in ("stream", "stream_options")}
    if {"tools", "response_format"} <= more.keys():
        more["tools"] = job.strict_tools  # then it parses both
    chat = ChatOpenAI(**where, stream_usage=job.asks_usage).bind(**more)
    if job.is_stream:
        first, *others = chat.stream(job.prompt)
        said = sum(others, start=first)
        calls = [[call["name"], call["args"]] for call in said.tool_call_chunks]
    else:
        said = chat.invoke(job.prompt)
        calls = [[call["name"], call["args"]] for call in (*said.tool_calls, *said.invalid_tool_calls)]
    counted = said.usage_metadata and _counts(said.usage_metadata)
    return heard([[said.content, calls, said.response_metadata.get("finish_reason")]], counted)


def _completed(result: Theirs) -> Saw:
    """Of a stream it tells no usage."""
    choices = [[one.text, [], one.generation_info.get("finish_reason")] for one in result.generations[0]]
    counted = (result.llm_output or {}).get("token_usage")
    return heard(
        choices, [counted[f"{name}_tokens"] for name in ("prompt", "completion", "total")] if counted else None
    )


if __name__ == "__main__":
    answer_jobs(
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
            "read": telling(read),
        }
    )
