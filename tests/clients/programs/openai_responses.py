"""The official client for Python on the Responses API: whole answers, raw streams, and its helper `stream()`."""

from collections.abc import Callable
from dataclasses import asdict
from functools import cache

from openai import APIStatusError, NotFoundError, OpenAI
from pydantic import BaseModel

from tests.clients.programs.job import City, Days, Job, Said, Saw, Theirs, answer_jobs, told

LIMIT_S = 100.0
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}


class Place(BaseModel):
    """The place and the days that the question is about."""

    city: City
    days: Days


@cache
def _kept_client(base_url: str, key: str) -> OpenAI:
    """To make one takes longer than most answers."""
    return OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=LIMIT_S)


def _client(job: Job) -> OpenAI:
    return _kept_client(job.base_url, job.key)


def _request(job: Job, **more: Theirs) -> dict[str, Theirs]:
    return {"model": job.model, "input": job.prompt, "max_output_tokens": job.max_tokens, "temperature": 0, **more}


def _whole(client: OpenAI, request: dict[str, Theirs], said: Said) -> Theirs:
    return _read(client.responses.create(**request), said)


def _stream(client: OpenAI, request: dict[str, Theirs], said: Said) -> Theirs:
    """All but the end by its pieces, put together by hand."""
    calls: dict[int, list[str]] = {}
    final = None
    events: Theirs = client.responses.create(**request, stream=True)
    for event in events:
        if event.type == "response.output_text.delta":
            said.pieces.append(event.delta)
        elif event.type == "response.reasoning_text.delta":
            said.thoughts.append(event.delta)
        elif event.type == "response.output_item.added" and event.item.type == "function_call":
            calls[event.output_index] = [event.item.name, event.item.arguments]
        elif event.type == "response.function_call_arguments.delta":
            calls[event.output_index][1] += event.delta
        elif event.type in TERMINAL:
            final = event.response
    for name, arguments in calls.values():
        said.call(name, arguments)
    _read_end(final, said)
    return final


def _helper(client: OpenAI, request: dict[str, Theirs], said: Said) -> Theirs:
    """It has no final answer unless that is whole."""
    failed = None
    opened: Theirs = client.responses.stream(**request)
    with opened as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                said.pieces.append(event.delta)
                assert event.snapshot == "".join(said.pieces)
            elif event.type in ("response.failed", "response.incomplete"):
                failed = event.response
        return _read(failed or stream.get_final_response(), said)


READERS: dict[str, Callable[[OpenAI, dict[str, Theirs], Said], Theirs]] = {
    "whole": _whole,
    "stream": _stream,
    "helper": _helper,
}


def _read(response: Theirs, said: Said) -> Theirs:
    """All that a whole response says; a text that came in pieces is there already."""
    if not said.pieces and response.output_text:
        said.pieces.append(response.output_text)
    for item in response.output:
        if item.type == "function_call":
            said.call(item.name, item.arguments)
        elif item.type == "reasoning":
            said.thoughts += [part.text for part in item.content or []]
    _read_end(response, said)
    return response


def _read_end(response: Theirs, said: Said) -> None:
    said.finish = response.status
    if response.usage is not None:
        said.usage = [response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens]
    if response.error is not None:
        said.error = f"{response.error.code}: {response.error.message}"


def _ask(job: Job, said: Said, **more: Theirs) -> Theirs:
    return READERS[job.way](_client(job), _request(job, **more), said)


def answer(job: Job) -> Saw:
    said = Said()
    try:
        _ask(job, said)
    except Exception as error:  # noqa: BLE001 - a client that stumbles raises anything
        said.fail(error)
    return asdict(said)


def _tools(job: Job) -> list[Theirs]:
    # The helper parses the arguments of strict tools only.
    return [{"type": "function", "strict": job.way == "helper", **tool["function"]} for tool in job.tools]


def call(job: Job) -> Saw:
    """A forced call, and the answer to what the tools said, with all that was said before it."""
    called, answered = Said(), Said()
    items: list[Theirs] = [{"role": "user", "content": job.question}]
    tools = _tools(job)
    first = _ask(job, called, input=items, tools=tools, tool_choice="required", max_output_tokens=job.call_tokens)
    items += _again(first.output) + _results(job, first.output)
    _ask(job, answered, input=items, tools=tools, tool_choice="none")
    return {"called": asdict(called), "answered": asdict(answered)}


def call_stored(job: Job) -> Saw:
    """The same with a named tool, and the server is to know what was said before."""
    called, answered = Said(), Said()
    tools = _tools(job)
    named = {"type": "function", "name": tools[0]["name"]}
    more: Theirs = {"tools": tools, "tool_choice": named, "max_output_tokens": job.call_tokens}
    first = _ask(job, called, input=job.question, **more)
    more = {"tools": tools, "tool_choice": "none", "previous_response_id": first.id}
    _ask(job, answered, input=_results(job, first.output), **more)
    return {"called": asdict(called), "answered": asdict(answered)}


def _again(output: Theirs) -> list[Theirs]:
    return [item.model_dump(mode="json", exclude_none=True, exclude={"parsed_arguments"}) for item in output]


def _results(job: Job, output: Theirs) -> list[Theirs]:
    calls = [item.call_id for item in output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": call_id, "output": job.tool_result} for call_id in calls]


def structured(job: Job) -> Saw:
    request = _request(job, input=job.question, max_output_tokens=job.call_tokens)
    responses = _client(job).responses
    whole = responses.parse(**request, text_format=Place).output_parsed
    with responses.stream(**request, text_format=Place) as stream:
        streamed = stream.get_final_response().output_parsed
    return {"places": [place.model_dump() for place in (whole, streamed) if place]}


def stored(job: Job) -> Saw:
    """A response is kept, given again, and gone when it was deleted."""
    responses = _client(job).responses
    made = responses.create(**_request(job))
    again = responses.retrieve(made.id)
    items = [item.type for item in responses.input_items.list(made.id)]
    responses.delete(made.id)
    try:
        responses.retrieve(made.id)
    except NotFoundError as error:
        return {"again": again.output == made.output, "input": items, **told(error, error.status_code)}
    return {"error": None}


def unknown_model(job: Job) -> Saw:
    return _refused(job, model=job.missing_model)


def bad_request(job: Job) -> Saw:
    return _refused(job, temperature=job.bad_temperature)


def _refused(job: Job, **more: Theirs) -> Saw:
    try:
        _ask(job, Said(), **more)
    except APIStatusError as error:
        return told(error, error.status_code)
    return {"error": None}


def cancel(job: Job) -> Saw:
    request = _request(job, input=job.story, max_output_tokens=job.story_tokens)
    responses = _client(job).responses
    opened: Theirs
    opened = responses.stream(**request) if job.way == "helper" else responses.create(**request, stream=True)
    pieces = 0
    with opened as stream:
        for event in stream:
            pieces += event.type == "response.output_text.delta"
            if pieces == 2:
                break
    return {"pieces": pieces}


if __name__ == "__main__":
    answer_jobs(
        {
            "answer": answer,
            "call": call,
            "call_stored": call_stored,
            "structured": structured,
            "stored": stored,
            "unknown_model": unknown_model,
            "bad_request": bad_request,
            "cancel": cancel,
        }
    )
