"""Google's Python client: whole replies, streams, and the chat that keeps the history of a stream."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache

from google import genai
from google.genai import errors, types

from tests.clients.programs.job import ClientValue, Job, Result, ShownAnswer, error_result, serve_jobs

LIMIT_MS = 100_000


@cache
def _cached_client(base_url: str, key: str) -> ClientValue:
    """Cached: creating a client takes longer than most answers. The client appends /v1 to the URL itself."""
    options = types.HttpOptions(base_url=base_url.removesuffix("/v1"), timeout=LIMIT_MS)
    return genai.Client(api_key=key, http_options=options)


def _client(job: Job) -> ClientValue:
    return _cached_client(job.base_url, job.key)


def _config(job: Job, **overrides: ClientValue) -> ClientValue:
    thinking = {"thinking_config": {"include_thoughts": True}} if "thinking" in job.parameters else {}
    return types.GenerateContentConfig(
        **{"temperature": 0, "max_output_tokens": job.max_tokens, **thinking, **overrides}
    )


def _user(text: str) -> ClientValue:
    return types.Content(role="user", parts=[types.Part(text=text)])


def _whole(job: Job, request: ClientValue, shown: ShownAnswer) -> list[ClientValue]:
    return _read([_client(job).models.generate_content(**request)], shown)


def _stream(job: Job, request: ClientValue, shown: ShownAnswer) -> list[ClientValue]:
    return _read(_client(job).models.generate_content_stream(**request), shown)


def _helper(job: Job, request: ClientValue, shown: ShownAnswer) -> list[ClientValue]:
    """The chat records the history itself, unless an element of the stream is invalid."""
    *history, last = request["contents"]
    chat = _client(job).chats.create(model=request["model"], config=request["config"], history=history)
    parts = _read(chat.send_message_stream(last.parts), shown)
    recorded = [part for content in chat.get_history(curated=True)[len(history) + 1 :] for part in content.parts]
    assert recorded == parts, (recorded, parts)
    return parts


READERS: dict[str, Callable[[Job, ClientValue, ShownAnswer], list[ClientValue]]] = {
    "whole": _whole,
    "stream": _stream,
    "helper": _helper,
}


def _read(elements: Iterable[ClientValue], shown: ShownAnswer) -> list[ClientValue]:
    """Read the elements of a stream; returns all parts."""
    parts: list[ClientValue] = []
    for element in elements:
        (candidate,) = element.candidates
        parts += candidate.content.parts
        assert candidate.content.role == "model"
        for part in candidate.content.parts:
            if part.function_call is not None:
                shown.calls.append([part.function_call.name, part.function_call.args])
            elif part.text:
                (shown.thoughts if part.thought else shown.pieces).append(part.text)
        if candidate.finish_reason is not None:
            assert shown.finish is None
            shown.finish = candidate.finish_reason.value
        if (usage := element.usage_metadata) is not None:
            counts = [usage.prompt_token_count, (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)]
            shown.usage = [*counts, usage.total_token_count]
    return parts


def _send(
    job: Job, shown: ShownAnswer, contents: ClientValue = None, model: str = "", **config: ClientValue
) -> ClientValue:
    contents = contents or [_user(job.prompt)]
    request = {"model": model or job.model, "contents": contents, "config": _config(job, **config)}
    return READERS[job.mode](job, request, shown)


def answer(job: Job) -> Result:
    shown = ShownAnswer()
    try:
        _send(job, shown)
    except Exception as error:  # noqa: BLE001 - a client may raise anything
        shown.fail(error)
    return asdict(shown)


def call(job: Job) -> Result:
    """Force a tool call, then send its result with the whole conversation."""
    called, answered = ShownAnswer(), ShownAnswer()
    functions = [tool["function"] for tool in job.tools]
    declared = [
        types.FunctionDeclaration(
            name=one["name"], description=one["description"], parameters_json_schema=one["parameters"]
        )
        for one in functions
    ]
    tools = [types.Tool(function_declarations=declared)]
    question = _user(job.question)
    forced: ClientValue = {"tools": tools, "tool_config": {"function_calling_config": {"mode": "ANY"}}}
    parts = _send(job, called, contents=[question], max_output_tokens=job.call_tokens, **forced)
    calls = [part.function_call for part in parts if part.function_call is not None]
    results = [
        types.Part(
            function_response=types.FunctionResponse(id=one.id, name=one.name, response={"result": job.tool_result})
        )
        for one in calls
    ]
    history = [question, types.Content(role="model", parts=parts), types.Content(role="user", parts=results)]
    free: ClientValue = {"tools": tools, "tool_config": {"function_calling_config": {"mode": "NONE"}}}
    _send(job, answered, contents=history, **free)
    return {"called": asdict(called), "answered": asdict(answered)}


def structured(job: Job) -> Result:
    """Request JSON for a schema in the format of OpenAPI."""
    city = types.Schema(type="STRING", enum=["Paris", "Oslo"])
    place = types.Schema(
        type="OBJECT",
        properties={"city": city, "days": types.Schema(type="INTEGER", minimum=1, maximum=3)},
        required=["city", "days"],
    )
    places = types.Schema(type="ARRAY", items=place, min_items=2, max_items=2)
    shown = ShownAnswer()
    _send(job, shown, max_output_tokens=200, response_mime_type="application/json", response_schema=places)
    return {"text": "".join(shown.pieces)}


def count(job: Job) -> Result:
    return {"tokens": _client(job).models.count_tokens(model=job.model, contents=job.prompt).total_tokens}


def models(job: Job) -> Result:
    return {"models": [model.name.removeprefix("models/") for model in _client(job).models.list()]}


def unknown_model(job: Job) -> Result:
    return _error_of(job, model=job.missing_model)


def bad_request(job: Job) -> Result:
    return _error_of(job, temperature=job.bad_temperature)


def _error_of(job: Job, **overrides: ClientValue) -> Result:
    try:
        _send(job, ShownAnswer(), **overrides)
    except errors.APIError as error:
        return error_result(error, error.code)
    return {"error": None}


def cancel(job: Job) -> Result:
    config = _config(job, max_output_tokens=job.story_tokens)
    if job.mode == "helper":
        stream = _client(job).chats.create(model=job.model, config=config).send_message_stream(job.story)
    else:
        stream = _client(job).models.generate_content_stream(model=job.model, contents=job.story, config=config)
    pieces = 0
    for element in stream:
        pieces += bool(element.text)
        if pieces == 2:
            break
    stream.close()
    return {"pieces": pieces}


if __name__ == "__main__":
    serve_jobs(
        {
            "answer": answer,
            "call": call,
            "structured": structured,
            "count": count,
            "models": models,
            "unknown_model": unknown_model,
            "bad_request": bad_request,
            "cancel": cancel,
        }
    )
