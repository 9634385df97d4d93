"""Helpers of OpenAI's Python client: `stream()`, which accumulates a stream, and `parse()`."""

from functools import cache

from openai import OpenAI
from pydantic import BaseModel

from tests.clients.programs.job import City, ClientValue, Days, Job, Result, answer_result, catching_errors, serve_jobs

LIMIT_S = 100.0


class Trip(BaseModel):
    """City and days of the question."""

    city: City
    days: Days


def _client(job: Job) -> OpenAI:
    return OpenAI(base_url=job.base_url, api_key=job.key, max_retries=0, timeout=LIMIT_S)


def _request(job: Job, **overrides: ClientValue) -> dict[str, ClientValue]:
    messages = [{"role": "user", "content": job.prompt}]
    return {"model": job.model, "messages": messages, "temperature": 0, "max_tokens": job.max_tokens, **overrides}


def text(job: Job) -> Result:
    """Read the snapshot: for an answer that reached its limit the helper raises instead of returning it."""
    pieces = 0
    with _client(job) as client:
        with client.chat.completions.stream(**_request(job)) as stream:
            for event in stream:
                pieces += event.type == "content.delta"
            streamed = stream.current_completion_snapshot.choices[0]
        whole = client.chat.completions.create(**_request(job)).choices[0]
    return {
        "streamed": streamed.message.content,
        "pieces": pieces,
        "whole": whole.message.content,
        "finish": [streamed.finish_reason, whole.finish_reason],
    }


def usage(job: Job) -> Result:
    with _client(job) as client:
        with client.chat.completions.stream(**_request(job, stream_options={"include_usage": True})) as stream:
            stream.until_done()
            streamed = stream.current_completion_snapshot.usage
        whole = client.chat.completions.create(**_request(job)).usage
    return {"streamed": [_counts(streamed)], "whole": _counts(whole)}


def _counts(item: ClientValue) -> list[int]:
    return [item.prompt_tokens, item.completion_tokens, item.total_tokens]


def tool_stream(job: Job) -> Result:
    """The helper parses the arguments of a strict tool itself."""
    tools = [{**tool, "function": {**tool["function"], "strict": True}} for tool in job.tools]
    messages = [{"role": "user", "content": job.question}]
    request = _request(job, tools=tools, messages=messages, max_tokens=job.call_tokens, tool_choice="required")
    with _client(job) as client, client.chat.completions.stream(**request) as stream:
        message = stream.get_final_completion().choices[0].message
    return {"calls": [[call.function.name, call.function.parsed_arguments] for call in message.tool_calls or []]}


def structured(job: Job) -> Result:
    messages = [{"role": "user", "content": job.question}]
    request = _request(job, messages=messages, max_tokens=job.call_tokens, response_format=Trip)
    with _client(job) as client:
        whole: ClientValue = client.chat.completions.parse(**request).choices[0].message.parsed
        with client.chat.completions.stream(**request) as stream:
            streamed: ClientValue = stream.get_final_completion().choices[0].message.parsed
    return {"places": [trip.model_dump() for trip in (whole, streamed)]}


def cancel(job: Job) -> Result:
    story = [{"role": "user", "content": job.story}]
    pieces = 0
    client = _client(job)
    with client.chat.completions.stream(**_request(job, messages=story, max_tokens=job.story_tokens)) as stream:
        for event in stream:
            pieces += event.type == "content.delta"
            if pieces == 2:
                break
    return {"pieces": pieces}


@cache
def _cached_client(base_url: str, key: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=LIMIT_S)


def read(job: Job) -> Result:
    """Read the snapshot, as in `text`. The helper accepts strict tools only."""
    parameters: dict[str, ClientValue] = {key: value for key, value in job.parameters.items() if key != "stream"}
    if "tools" in parameters:
        parameters["tools"] = job.strict_tools
    messages: ClientValue = [{"role": "user", "content": job.prompt}]
    completions = _cached_client(job.base_url, job.key).chat.completions
    with completions.stream(model=job.model, messages=messages, **parameters) as stream:
        stream.until_done()
        completion = stream.current_completion_snapshot
    choices = [[item.message.content or "", _calls(item.message), item.finish_reason] for item in completion.choices]
    return answer_result(choices, _counts(completion.usage) if completion.usage else None)


def _calls(message: ClientValue) -> list[ClientValue]:
    return [[call.function.name, call.function.arguments] for call in message.tool_calls or []]


if __name__ == "__main__":
    scenarios = (text, usage, tool_stream, structured, cancel)
    serve_jobs({scenario.__name__: scenario for scenario in scenarios} | {"read": catching_errors(read)})
