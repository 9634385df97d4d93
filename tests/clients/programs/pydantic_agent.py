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


def _model(job: Job, name: str | None = None) -> ClientValue:
    client = AsyncOpenAI(base_url=job.base_url, api_key=job.key, max_retries=0, timeout=LIMIT_S)
    return OpenAIChatModel(name or job.model, provider=OpenAIProvider(openai_client=client))


def _settings(job: Job, **overrides: ClientValue) -> dict[str, ClientValue]:
    return {"temperature": 0, "max_tokens": job.max_tokens, **overrides}


async def text(job: Job) -> Result:
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


async def usage(job: Job) -> Result:
    agent = Agent(_model(job), model_settings=_settings(job))
    async with agent.run_stream(job.prompt) as result:
        await result.get_output()
        streamed = result.response.usage
    whole = (await agent.run(job.prompt)).response.usage
    return {"streamed": [_counts(streamed)], "whole": _counts(whole)}


def _counts(item: ClientValue) -> list[int]:
    return [item.input_tokens, item.output_tokens, item.total_tokens]


class _FirstStep(AbstractCapability):  # type: ignore[misc]  # untyped in this venv
    """Forces one tool call in the first step and text in the second."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def get_model_settings(self) -> Callable[[ClientValue], dict[str, ClientValue]]:
        return self._for_step

    def _for_step(self, context: ClientValue) -> dict[str, ClientValue]:
        if context.run_step > 1:
            return _settings(self._job, tool_choice="none")
        return _settings(self._job, tool_choice=["get_weather"], max_tokens=self._job.call_tokens)


async def tool_named(job: Job) -> Result:
    """The agent calls the function and sends its result itself."""
    calls = []

    def get_weather(city: City, days: Days) -> str:
        """The weather of the next days."""
        calls.append(["get_weather", {"city": city, "days": days}])
        return job.tool_result

    agent = Agent(_model(job), tools=[get_weather], capabilities=[_FirstStep(job)])
    result = await agent.run(job.question)
    return {"calls": calls, "answer": result.output}


def _tools(job: Job) -> ClientValue:
    functions = [tool["function"] for tool in job.tools]
    options = [
        ToolDefinition(
            name=function["name"],
            description=function["description"],
            parameters_json_schema=function["parameters"],
        )
        for function in functions
    ]
    return ModelRequestParameters(function_tools=options)


async def tool_required(job: Job) -> Result:
    model = _model(job)
    prompt = ModelRequest.user_text_prompt(job.question)
    forced = _settings(job, tool_choice="required", max_tokens=job.call_tokens)
    response = await model_request(model, [prompt], model_settings=forced, model_request_parameters=_tools(job))
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    results = [ToolReturnPart(call.tool_name, job.tool_result, tool_call_id=call.tool_call_id) for call in calls]
    answer = await model_request(
        model,
        [prompt, response, ModelRequest(parts=results)],
        model_settings=_settings(job, tool_choice="none"),
        model_request_parameters=_tools(job),
    )
    return {"calls": _calls(calls), "answer": answer.text}


def _calls(calls: list[ClientValue]) -> list[ClientValue]:
    return [[call.tool_name, json.loads(call.args_as_json_str())] for call in calls]


async def tool_stream(job: Job) -> Result:
    prompt = [ModelRequest.user_text_prompt(job.question)]
    forced = _settings(job, tool_choice="required", max_tokens=job.call_tokens)
    async with model_request_stream(
        _model(job), prompt, model_settings=forced, model_request_parameters=_tools(job)
    ) as stream:
        async for _ in stream:
            pass
    return {"calls": _calls([part for part in stream.get().parts if isinstance(part, ToolCallPart)])}


async def structured(job: Job) -> Result:
    """Structured output with a forced tool and with a schema."""
    trips = []
    for output in (ToolOutput(Trip), NativeOutput(Trip)):
        agent = Agent(_model(job), output_type=output, model_settings=_settings(job, max_tokens=job.call_tokens))
        trips.append((await agent.run(job.question)).output.model_dump())
        async with agent.run_stream(job.question) as result:
            trips.append((await result.get_output()).model_dump())
    return {"places": trips}


async def unknown_model(job: Job) -> Result:
    return await _error_of(job, Agent(_model(job, job.missing_model), model_settings=_settings(job)))


async def bad_request(job: Job) -> Result:
    return await _error_of(job, Agent(_model(job), model_settings=_settings(job, temperature=job.bad_temperature)))


async def _error_of(job: Job, agent: ClientValue) -> Result:
    try:
        await agent.run(job.prompt)
    except ModelHTTPError as error:
        return error_result(error, error.status_code)
    return {"error": None}


async def cancel(job: Job) -> Result:
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
def _cached_client(base_url: str, key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=LIMIT_S)


async def read(job: Job) -> Result:
    parameters = job.parameters
    settings = {key: parameters[key] for key in ("parallel_tool_calls",) if key in parameters}
    if "tool_choice" in parameters:
        choice = parameters["tool_choice"]
        settings["tool_choice"] = [choice["function"]["name"]] if isinstance(choice, dict) else choice
    settings["extra_body"] = {
        key: parameters[key] for key in ("response_format", "logprobs", "top_logprobs") if key in parameters
    }
    model = OpenAIChatModel(job.model, provider=OpenAIProvider(openai_client=_cached_client(job.base_url, job.key)))
    request = model, [ModelRequest.user_text_prompt(job.prompt)]
    overrides = {"model_settings": settings, "model_request_parameters": _parameters(parameters.get("tools", []))}
    if job.is_stream:
        async with model_request_stream(*request, **overrides) as stream:
            async for _ in stream:
                pass
        response = stream.get()
    else:
        response = await model_request(*request, **overrides)
    calls = [[part.tool_name, part.args] for part in response.parts if isinstance(part, ToolCallPart)]
    finish = (response.provider_details or {}).get("finish_reason")
    return answer_result([[response.text or "", calls, finish]], _counts(response.usage))


def _parameters(tools: list[ClientValue]) -> ClientValue:
    functions = [tool["function"] for tool in tools]
    options = [ToolDefinition(name=item["name"], parameters_json_schema=item["parameters"]) for item in functions]
    return ModelRequestParameters(function_tools=options)


def _run(scenario: Callable[[Job], ClientValue]) -> Callable[[Job], Result]:
    return lambda job: asyncio.run(scenario(job))


if __name__ == "__main__":
    scenarios = (text, usage, tool_named, tool_required, tool_stream, structured, unknown_model, bad_request, cancel)
    # One event loop for all `read` jobs: pooled connections belong to it.
    with asyncio.Runner() as loop:
        read_scenario = {"read": catching_errors(lambda job: loop.run(read(job)))}
        serve_jobs({scenario.__name__: _run(scenario) for scenario in scenarios} | read_scenario)
