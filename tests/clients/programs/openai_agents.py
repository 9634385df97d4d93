"""The OpenAI Agents SDK on the Responses API: a run, and a streamed run."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import asdict

from agents import (  # type: ignore[import-not-found]  # not in this venv
    Agent,
    FunctionTool,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    set_tracing_disabled,
)
from openai import APIStatusError, AsyncOpenAI

from tests.clients.programs.job import ClientValue, Job, Result, Scenario, ShownAnswer, error_result, serve_jobs

LIMIT_S = 100.0
# One tool call, and the answer to its result.
TURNS = 2


def _agent(job: Job, *, model: str | None = None, **overrides: ClientValue) -> ClientValue:
    client = AsyncOpenAI(base_url=job.base_url, api_key=job.key, max_retries=0, timeout=LIMIT_S)
    settings = ModelSettings(**{"temperature": 0, "max_tokens": job.max_tokens, **overrides.pop("settings", {})})
    named = OpenAIResponsesModel(model=model or job.model, openai_client=client)
    return Agent(name="Weatherman", model=named, model_settings=settings, **overrides)


async def _run(agent: ClientValue, prompt: str, shown: ShownAnswer, *, is_streamed: bool) -> ClientValue:
    if is_streamed:
        result = Runner.run_streamed(agent, prompt, max_turns=TURNS)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                shown.pieces.append(event.data.delta)
    else:
        result = await Runner.run(agent, prompt, max_turns=TURNS)
        shown.pieces.append(result.final_output)
    counted = result.context_wrapper.usage
    shown.usage = [counted.input_tokens, counted.output_tokens, counted.total_tokens]
    return result


async def answer(job: Job) -> Result:
    shown = ShownAnswer()
    try:
        await _run(_agent(job), job.prompt, shown, is_streamed=job.mode == "stream")
    except Exception as error:  # noqa: BLE001 - a client may raise anything
        shown.fail(error)
    return asdict(shown)


async def call(job: Job) -> Result:
    """The agent calls the functions and sends their results itself."""
    called, answered = ShownAnswer(), ShownAnswer()

    def tool(function: dict[str, ClientValue]) -> ClientValue:
        async def invoke(context: ClientValue, arguments: str) -> str:
            called.call(function["name"], arguments)
            return job.tool_result

        return FunctionTool(
            name=function["name"],
            description=function["description"],
            params_json_schema=function["parameters"],
            on_invoke_tool=invoke,
        )

    # After the first call the agent leaves the choice to the model.
    forced = {"tool_choice": "required", "max_tokens": job.call_tokens}
    agent = _agent(job, tools=[tool(one["function"]) for one in job.tools], settings=forced)
    result = await _run(agent, job.question, answered, is_streamed=job.mode == "stream")
    answered.pieces = [result.final_output]
    return {"called": asdict(called), "answered": asdict(answered)}


async def unknown_model(job: Job) -> Result:
    return await _error_of(job, _agent(job, model=job.missing_model))


async def bad_request(job: Job) -> Result:
    return await _error_of(job, _agent(job, settings={"temperature": job.bad_temperature}))


async def _error_of(job: Job, agent: ClientValue) -> Result:
    try:
        await _run(agent, job.prompt, ShownAnswer(), is_streamed=job.mode == "stream")
    except APIStatusError as error:
        return error_result(error, error.status_code)
    return {"error": None}


async def cancel(job: Job) -> Result:
    result = Runner.run_streamed(_agent(job, settings={"max_tokens": job.story_tokens}), job.story)
    pieces = 0
    async for event in result.stream_events():  # ends when the run is cancelled
        pieces += event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        if pieces == 2:
            result.cancel()
    return {"pieces": pieces}


if __name__ == "__main__":
    set_tracing_disabled(disabled=True)  # traces are sent to OpenAI
    # One event loop for all jobs: pooled connections belong to it.
    with asyncio.Runner() as loop:

        def _run_in(scenario: Callable[[Job], Coroutine[ClientValue, ClientValue, Result]]) -> Scenario:
            return lambda job: loop.run(scenario(job))

        scenarios = (answer, call, unknown_model, bad_request, cancel)
        serve_jobs({scenario.__name__: _run_in(scenario) for scenario in scenarios})
