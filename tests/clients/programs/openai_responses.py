"""OpenAI's Python client on the Responses API: buffered responses, raw streams, the helper `stream()`, WebSockets."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache

import httpx2
from openai import APIStatusError, NotFoundError, OpenAI, Stream
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from tests.clients.programs.job import City, ClientValue, Days, Job, Result, ShownAnswer, error_result, serve_jobs

LIMIT_S = 100.0
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}


class Trip(BaseModel):
    """City and days of the question."""

    city: City
    days: Days


@cache
def _cached_client(base_url: str, key: str) -> OpenAI:
    """Cached: creating a client takes longer than most answers."""
    return OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=LIMIT_S)


def _client(job: Job) -> OpenAI:
    return _cached_client(job.base_url, job.key)


def _request(job: Job, **overrides: ClientValue) -> dict[str, ClientValue]:
    return {"model": job.model, "input": job.prompt, "max_output_tokens": job.max_tokens, "temperature": 0, **overrides}


def _whole(client: OpenAI, request: dict[str, ClientValue], shown: ShownAnswer) -> ClientValue:
    return _read(client.responses.create(**request), shown)


def _stream(client: OpenAI, request: dict[str, ClientValue], shown: ShownAnswer) -> ClientValue:
    return _accumulate(client.responses.create(**request, stream=True), shown)


def _socket(client: OpenAI, request: dict[str, ClientValue], shown: ShownAnswer) -> ClientValue:
    with client.responses.connect() as connection:
        connection.response.create(**request)
        return _accumulate(_events(client, connection), shown)


def _events(client: OpenAI, connection: ClientValue) -> Iterator[ClientValue]:
    """Yield the events of one response; an error event becomes the exception of its status."""
    for event in connection:
        if event.type == "error":
            response = httpx2.Response(event.status, request=httpx2.Request("GET", client.base_url))
            raise client._make_status_error(event.error.message, body=event.error.to_dict(), response=response)
        yield event
        if event.type in TERMINAL:
            return


def _accumulate(events: ClientValue, shown: ShownAnswer) -> ClientValue:
    """Accumulate text and calls by hand; status and usage come from the last event."""
    calls: dict[int, list[str]] = {}
    final = None
    for event in events:
        if event.type == "response.output_text.delta":
            shown.pieces.append(event.delta)
        elif event.type == "response.reasoning_text.delta":
            shown.thoughts.append(event.delta)
        elif event.type == "response.output_item.added" and event.item.type == "function_call":
            calls[event.output_index] = [event.item.name, event.item.arguments]
        elif event.type == "response.function_call_arguments.delta":
            calls[event.output_index][1] += event.delta
        elif event.type in TERMINAL:
            final = event.response
    for name, arguments in calls.values():
        shown.call(name, arguments)
    _read_end(final, shown)
    return final


def _helper(client: OpenAI, request: dict[str, ClientValue], shown: ShownAnswer) -> ClientValue:
    """The helper returns a final response only if it is complete."""
    failed = None
    opened: ClientValue = client.responses.stream(**request)
    with opened as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                shown.pieces.append(event.delta)
                assert event.snapshot == "".join(shown.pieces)
            elif event.type in ("response.failed", "response.incomplete"):
                failed = event.response
        return _read(failed or stream.get_final_response(), shown)


READERS: dict[str, Callable[[OpenAI, dict[str, ClientValue], ShownAnswer], ClientValue]] = {
    "whole": _whole,
    "stream": _stream,
    "helper": _helper,
    "socket": _socket,
}


def _read(response: ClientValue, shown: ShownAnswer) -> ClientValue:
    """Read a complete response; text that was streamed is already recorded."""
    if not shown.pieces and response.output_text:
        shown.pieces.append(response.output_text)
    for item in response.output:
        if item.type == "function_call":
            shown.call(item.name, item.arguments)
        elif item.type == "reasoning":
            shown.thoughts += [part.text for part in item.content or []]
    _read_end(response, shown)
    return response


def _read_end(response: ClientValue, shown: ShownAnswer) -> None:
    shown.finish = response.status
    if response.usage is not None:
        shown.usage = [response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens]
    if response.error is not None:
        shown.error = f"{response.error.code}: {response.error.message}"


def _send(job: Job, shown: ShownAnswer, **overrides: ClientValue) -> ClientValue:
    return READERS[job.mode](_client(job), _request(job, **overrides), shown)


def answer(job: Job) -> Result:
    shown = ShownAnswer()
    try:
        _send(job, shown)
    except Exception as error:  # noqa: BLE001 - a client may raise anything
        shown.fail(error)
    return asdict(shown)


def _tools(job: Job) -> list[ClientValue]:
    # The helper parses the arguments of strict tools only.
    return [{"type": "function", "strict": job.mode == "helper", **tool["function"]} for tool in job.tools]


def call(job: Job) -> Result:
    """Force a tool call, then send its result with the whole conversation."""
    called, answered = ShownAnswer(), ShownAnswer()
    items: list[ClientValue] = [{"role": "user", "content": job.question}]
    tools = _tools(job)
    first = _send(job, called, input=items, tools=tools, tool_choice="required", max_output_tokens=job.call_tokens)
    items += _input_items(first.output) + _results(job, first.output)
    _send(job, answered, input=items, tools=tools, tool_choice="none")
    return {"called": asdict(called), "answered": asdict(answered)}


def call_stored(job: Job) -> Result:
    """The same with a named tool and `previous_response_id` instead of the conversation."""
    called, answered = ShownAnswer(), ShownAnswer()
    tools = _tools(job)
    named = {"type": "function", "name": tools[0]["name"]}
    overrides: ClientValue = {"tools": tools, "tool_choice": named, "max_output_tokens": job.call_tokens}
    first = _send(job, called, input=job.question, **overrides)
    overrides = {"tools": tools, "tool_choice": "none", "previous_response_id": first.id}
    _send(job, answered, input=_results(job, first.output), **overrides)
    return {"called": asdict(called), "answered": asdict(answered)}


def _input_items(output: ClientValue) -> list[ClientValue]:
    return [item.model_dump(mode="json", exclude_none=True, exclude={"parsed_arguments"}) for item in output]


def _results(job: Job, output: ClientValue) -> list[ClientValue]:
    calls = [item.call_id for item in output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": call_id, "output": job.tool_result} for call_id in calls]


def structured(job: Job) -> Result:
    request = _request(job, input=job.question, max_output_tokens=job.call_tokens)
    responses = _client(job).responses
    whole = responses.parse(**request, text_format=Trip).output_parsed
    with responses.stream(**request, text_format=Trip) as stream:
        streamed = stream.get_final_response().output_parsed
    return {"places": [trip.model_dump() for trip in (whole, streamed) if trip]}


def stored(job: Job) -> Result:
    """A stored response can be retrieved until it is deleted."""
    responses = _client(job).responses
    created = responses.create(**_request(job))
    retrieved = responses.retrieve(created.id)
    items = [item.type for item in responses.input_items.list(created.id)]
    responses.delete(created.id)
    try:
        responses.retrieve(created.id)
    except NotFoundError as error:
        return {"again": retrieved.output == created.output, "input": items, **error_result(error, error.status_code)}
    return {"error": None}


def resumed(job: Job) -> Result:
    """The stream of a background response, which is lost after its second piece of text and resumed."""
    responses = _client(job).responses
    pieces: list[str] = []
    last, response_id = -1, ""
    opened: ClientValue = responses.create(**_request(job), background=True, stream=True)
    with opened as stream:
        for event in stream:
            last = event.sequence_number
            if event.type == "response.created":
                response_id = event.response.id
            pieces += [event.delta] if event.type == "response.output_text.delta" else []
            if len(pieces) == 2:
                break
    numbers, final = [], None
    rest: ClientValue = responses.retrieve(response_id, stream=True, starting_after=last)
    for event in rest:
        numbers.append(event.sequence_number)
        pieces += [event.delta] if event.type == "response.output_text.delta" else []
        final = event.response if event.type in TERMINAL else final
    whole = responses.retrieve(response_id)
    return {
        "is_contiguous": numbers == list(range(last + 1, last + 1 + len(numbers))),
        "is_whole": "".join(pieces) == whole.output_text and final == whole,
        "background": whole.background,
        "pieces": len(pieces),
    }


def numbered_chat(job: Job) -> Result:
    """A chat with `id:` lines, read by the client and resumed with the event class of its streams."""
    client = _client(job)
    request: ClientValue = {
        "model": job.model,
        "messages": [{"role": "user", "content": job.prompt}],
        "max_tokens": job.max_tokens,
        "temperature": 0,
    }
    raw = client.chat.completions.with_raw_response.create(
        **request, stream=True, extra_headers={"x-welldone-resume": "1"}
    )
    first: ClientValue = raw.parse()
    text = ""
    for count, chunk in enumerate(first, 1):
        text += chunk.choices[0].delta.content or ""
        if count == 3:
            break
    first.close()
    options: ClientValue = {"headers": {"Last-Event-ID": "3"}}
    path = f"/streams/{raw.headers['x-welldone-stream-id']}"
    rest: ClientValue = client.get(
        path, cast_to=ChatCompletionChunk, stream=True, stream_cls=Stream[ChatCompletionChunk], options=options
    )
    for chunk in rest:
        text += chunk.choices[0].delta.content or ""
    whole = client.chat.completions.create(**request)
    return {"is_whole": text == whole.choices[0].message.content}


def unknown_model(job: Job) -> Result:
    return _error_of(job, model=job.missing_model)


def bad_request(job: Job) -> Result:
    return _error_of(job, temperature=job.bad_temperature)


def _error_of(job: Job, **overrides: ClientValue) -> Result:
    try:
        _send(job, ShownAnswer(), **overrides)
    except APIStatusError as error:
        return error_result(error, error.status_code)
    return {"error": None}


def cancel(job: Job) -> Result:
    request = _request(job, input=job.story, max_output_tokens=job.story_tokens)
    client = _client(job)
    responses = client.responses
    opened: ClientValue
    if job.mode == "socket":
        with responses.connect() as connection:
            connection.response.create(**request)
            return {"pieces": _two_pieces(_events(client, connection))}
    opened = responses.stream(**request) if job.mode == "helper" else responses.create(**request, stream=True)
    with opened as stream:
        return {"pieces": _two_pieces(stream)}


def _two_pieces(events: ClientValue) -> int:
    pieces = 0
    for event in events:
        pieces += event.type == "response.output_text.delta"
        if pieces == 2:
            break
    return pieces


if __name__ == "__main__":
    serve_jobs(
        {
            "answer": answer,
            "call": call,
            "call_stored": call_stored,
            "structured": structured,
            "stored": stored,
            "resumed": resumed,
            "numbered_chat": numbered_chat,
            "unknown_model": unknown_model,
            "bad_request": bad_request,
            "cancel": cancel,
        }
    )
