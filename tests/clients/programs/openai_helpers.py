"""The helpers of the official client for Python: `stream()`, which adds up a stream, and `parse()`."""

from functools import cache

from openai import OpenAI
from pydantic import BaseModel

from tests.clients.programs.job import City, Days, Job, Saw, Theirs, answer_jobs, heard, telling

LIMIT_S = 100.0


class Place(BaseModel):
    """The place and the days that the question is about."""

    city: City
    days: Days


def _client(job: Job) -> OpenAI:
    return OpenAI(base_url=job.base_url, api_key=job.key, max_retries=0, timeout=LIMIT_S)


def _request(job: Job, **more: Theirs) -> dict[str, Theirs]:
    messages = [{"role": "user", "content": job.prompt}]
    return {"model": job.model, "messages": messages, "temperature": 0, "max_tokens": job.max_tokens, **more}


def text(job: Job) -> Saw:
    """What it has added up. Of an answer that reached its limit the helper gives no final one, but raises."""
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


def usage(job: Job) -> Saw:
    with _client(job) as client:
        with client.chat.completions.stream(**_request(job, stream_options={"include_usage": True})) as stream:
            stream.until_done()
            streamed = stream.current_completion_snapshot.usage
        whole = client.chat.completions.create(**_request(job)).usage
    return {"streamed": [_counts(streamed)], "whole": _counts(whole)}


def _counts(one: Theirs) -> list[int]:
    return [one.prompt_tokens, one.completion_tokens, one.total_tokens]


def tool_stream(job: Job) -> Saw:
    """The helper parses the arguments of a strict tool itself."""
    tools = [{**tool, "function": {**tool["function"], "strict": True}} for tool in job.tools]
    messages = [{"role": "user", "content": job.question}]
    asked = _request(job, tools=tools, messages=messages, max_tokens=job.call_tokens, tool_choice="required")
    with _client(job) as client, client.chat.completions.stream(**asked) as stream:
        message = stream.get_final_completion().choices[0].message
    return {"calls": [[call.function.name, call.function.parsed_arguments] for call in message.tool_calls or []]}


def structured(job: Job) -> Saw:
    messages = [{"role": "user", "content": job.question}]
    asked = _request(job, messages=messages, max_tokens=job.call_tokens, response_format=Place)
    with _client(job) as client:
        whole: Theirs = client.chat.completions.parse(**asked).choices[0].message.parsed
        with client.chat.completions.stream(**asked) as stream:
            streamed: Theirs = stream.get_final_completion().choices[0].message.parsed
    return {"places": [place.model_dump() for place in (whole, streamed)]}


def cancel(job: Job) -> Saw:
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
def _kept_client(base_url: str, key: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=LIMIT_S)


def read(job: Job) -> Saw:
    """What it has added up, as in `text`. It takes only tools that are strict."""
    asks: dict[str, Theirs] = {key: value for key, value in job.asks.items() if key != "stream"}
    if "tools" in asks:
        asks["tools"] = job.strict_tools
    messages: Theirs = [{"role": "user", "content": job.prompt}]
    completions = _kept_client(job.base_url, job.key).chat.completions
    with completions.stream(model=job.model, messages=messages, **asks) as stream:
        stream.until_done()
        said = stream.current_completion_snapshot
    choices = [[one.message.content or "", _calls(one.message), one.finish_reason] for one in said.choices]
    return heard(choices, _counts(said.usage) if said.usage else None)


def _calls(message: Theirs) -> list[Theirs]:
    return [[call.function.name, call.function.arguments] for call in message.tool_calls or []]


if __name__ == "__main__":
    scenarios = (text, usage, tool_stream, structured, cancel)
    answer_jobs({scenario.__name__: scenario for scenario in scenarios} | {"read": telling(read)})
