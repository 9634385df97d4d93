"""pydantic-ai: an agent with text, a tool, and an output type; and requests without an agent."""

import asyncio
import json
from collections.abc import Callable
from functools import cache

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput  # type: ignore[import-not-found]  # not here
from pydantic_ai.capabilities import AbstractCapability  # type: ignore[import-not-found]  # not in this venv
from pydantic_ai.direct import model_request, model_request_stream  # type: ignore[import-not-found]  # not here
from pydantic_ai.messages import (  # type: ignore[import-not-found]  # not in this venv
    ModelRequest,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import ModelRequestParameters  # type: ignore[import-not-found]  # not in this venv
from pydantic_ai.models.openai import OpenAIChatModel  # type: ignore[import-not-found]  # not in this venv
from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]  # not in this venv
from pydantic_ai.tools import ToolDefinition  # type: ignore[import-not-found]  # not in this venv

from tests.clients.programs.job import City, Days, Job, Saw, Theirs, answer_jobs, heard, telling, told

LIMIT_S = 100.0


class Place(BaseModel):
    """The place and the days that the question is about."""

    city: City
    days: Days


def _model(job: Job, name: str | None = None) -> Theirs:
    client = AsyncOpenAI(base_url=job.base_url, api_key=job.key, max_retries=0, timeout=LIMIT_S)
    return OpenAIChatModel(name or job.model, provider=OpenAIProvider(openai_client=client))


def _settings(job: Job, **more: Theirs) -> dict[str, Theirs]:
    return {"temperature": 0, "max_tokens": job.max_tokens, **more}


async def text(job: Job) -> Saw:
    agent = Agent(_model(job), model_settings=_settings(job))
    pieces = []
    async with agent.run_stream(job.prompt) as result:
        async for piece in result.stream_text(delta=True, debounce_by=None):
            pieces += [piece] if piece else []
        streamed = result.response
    whole = await agent.run(job.prompt)
    return {
        "streamed": "".join(pieces),
        "pieces": len(pieces),
        "whole": whole.output,
        "finish": [streamed.finish_reason, whole.response.finish_reason],
    }


async def usage(job: Job) -> Saw:
    agent = Agent(_model(job), model_settings=_settings(job))
    async with agent.run_stream(job.prompt) as result:
        await result.get_output()
        streamed = result.response.usage
    whole = (await agent.run(job.prompt)).response.usage
    return {"streamed": [_counts(streamed)], "whole": _counts(whole)}


def _counts(one: Theirs) -> list[int]:
    return [one.input_tokens, one.output_tokens, one.total_tokens]


class _FirstStep(AbstractCapability):  # type: ignore[misc]  # its type is not known in this venv
    """Has the agent call one tool, and then speak."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def get_model_settings(self) -> Callable[[Theirs], dict[str, Theirs]]:
        return self._for_step

    def _for_step(self, context: Theirs) -> dict[str, Theirs]:
        if context.run_step > 1:
            return _settings(self._job, tool_choice="none")
        return _settings(self._job, tool_choice=["get_weather"], max_tokens=self._job.call_tokens)


async def tool_named(job: Job) -> Saw:
    """The agent itself calls the function and hands its result on."""
    calls = []

    def get_weather(city: City, days: Days) -> str:
        """The weather of the next days."""
        calls.append(["get_weather", {"city": city, "days": days}])
        return job.tool_result

    agent = Agent(_model(job), tools=[get_weather], capabilities=[_FirstStep(job)])
    result = await agent.run(job.question)
    return {"calls": calls, "answer": result.output}


def _tools(job: Job) -> Theirs:
    functions = [tool["function"] for tool in job.tools]
    given = [
        ToolDefinition(
            name=function["name"],
            description=function["description"],
            parameters_json_schema=function["parameters"],
        )
        for function in functions
    ]
    return ModelRequestParameters(function_tools=given)


async def tool_required(job: Job) -> Saw:
    model = _model(job)
    asked = ModelRequest.user_text_prompt(job.question)
    forced = _settings(job, tool_choice="required", max_tokens=job.call_tokens)
    said = await model_request(model, [asked], model_settings=forced, model_request_parameters=_tools(job))
    calls = [part for part in said.parts if isinstance(part, ToolCallPart)]
    results = [ToolReturnPart(call.tool_name, job.tool_result, tool_call_id=call.tool_call_id) for call in calls]
    answer = await model_request(
        model,
        [asked, said, ModelRequest(parts=results)],
        model_settings=_settings(job, tool_choice="none"),
        model_request_parameters=_tools(job),
    )
    return {"calls": _calls(calls), "answer": answer.text}


def _calls(calls: list[Theirs]) -> list[Theirs]:
    return [[call.tool_name, json.loads(call.args_as_json_str())] for call in calls]


async def tool_stream(job: Job) -> Saw:
    asked = [ModelRequest.user_text_prompt(job.question)]
    forced = _settings(job, tool_choice="required", max_tokens=job.call_tokens)
    async with model_request_stream(
        _model(job), asked, model_settings=forced, model_request_parameters=_tools(job)
    ) as stream:
        async for _ in stream:
            pass
    return {"calls": _calls([part for part in stream.get().parts if isinstance(part, ToolCallPart)])}


async def structured(job: Job) -> Saw:
    """By a tool that must be called, and by a schema."""
    places = []
    for output in (ToolOutput(Place), NativeOutput(Place)):
        agent = Agent(_model(job), output_type=output, model_settings=_settings(job, max_tokens=job.call_tokens))
        places.append((await agent.run(job.question)).output.model_dump())
        async with agent.run_stream(job.question) as result:
            places.append((await result.get_output()).model_dump())
    return {"places": places}


async def unknown_model(job: Job) -> Saw:
    return await _refused(job, Agent(_model(job, job.missing_model), model_settings=_settings(job)))


async def bad_request(job: Job) -> Saw:
    return await _refused(job, Agent(_model(job), model_settings=_settings(job, temperature=job.bad_temperature)))


async def _refused(job: Job, agent: Theirs) -> Saw:
    try:
        await agent.run(job.prompt)
    except ModelHTTPError as error:
        return told(error, error.status_code)
    return {"error": None}


async def cancel(job: Job) -> Saw:
    pieces = 0
    agent = Agent(_model(job), model_settings=_settings(job, max_tokens=job.story_tokens))
    async with agent.run_stream(job.story) as result:
        async for piece in result.stream_text(delta=True, debounce_by=None):
            pieces += bool(piece)
            if pieces == 2:
                break
        await result.cancel()
    return {"pieces": pieces}


@cache
def _kept_client(base_url: str, key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=LIMIT_S)


async def read(job: Job) -> Saw:
    asks = job.asks
    settings = {key: asks[key] for key in ("parallel_tool_calls",) if key in asks}
    if "tool_choice" in asks:
        choice = asks["tool_choice"]
        settings["tool_choice"] = [choice["function"]["name"]] if isinstance(choice, dict) else choice
    settings["extra_body"] = {key: asks[key] for key in ("response_format", "logprobs", "top_logprobs") if key in asks}
    model = OpenAIChatModel(job.model, provider=OpenAIProvider(openai_client=_kept_client(job.base_url, job.key)))
    asked = model, [ModelRequest.user_text_prompt(job.prompt)]
    more = {"model_settings": settings, "model_request_parameters": _offered(asks.get("tools", []))}
    if job.is_stream:
        async with model_request_stream(*asked, **more) as stream:
            async for _ in stream:
                pass
        said = stream.get()
    else:
        said = await model_request(*asked, **more)
    calls = [[part.tool_name, part.args] for part in said.parts if isinstance(part, ToolCallPart)]
    finish = (said.provider_details or {}).get("finish_reason")
    return heard([[said.text or "", calls, finish]], _counts(said.usage))


def _offered(tools: list[Theirs]) -> Theirs:
    functions = [tool["function"] for tool in tools]
    given = [ToolDefinition(name=one["name"], parameters_json_schema=one["parameters"]) for one in functions]
    return ModelRequestParameters(function_tools=given)


def _run(scenario: Callable[[Job], Theirs]) -> Callable[[Job], Saw]:
    return lambda job: asyncio.run(scenario(job))


if __name__ == "__main__":
    scenarios = (text, usage, tool_named, tool_required, tool_stream, structured, unknown_model, bad_request, cancel)
    # One loop for all that is read: the connections that a client keeps belong to it.
    with asyncio.Runner() as loop:
        reading = {"read": telling(lambda job: loop.run(read(job)))}
        answer_jobs({scenario.__name__: _run(scenario) for scenario in scenarios} | reading)
