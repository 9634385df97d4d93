"""The agents of OpenAI, which speak the Responses API: a run, and a run that is streamed."""

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

from tests.clients.programs.job import Job, Said, Saw, Scenario, Theirs, answer_jobs, told

LIMIT_S = 100.0
# One call, and what is said of its result.
TURNS = 2


def _agent(job: Job, *, model: str | None = None, **more: Theirs) -> Theirs:
    client = AsyncOpenAI(base_url=job.base_url, api_key=job.key, max_retries=0, timeout=LIMIT_S)
    settings = ModelSettings(**{"temperature": 0, "max_tokens": job.max_tokens, **more.pop("settings", {})})
    named = OpenAIResponsesModel(model=model or job.model, openai_client=client)
    return Agent(name="Weatherman", model=named, model_settings=settings, **more)


async def _run(agent: Theirs, prompt: str, said: Said, *, is_streamed: bool) -> Theirs:
    if is_streamed:
        result = Runner.run_streamed(agent, prompt, max_turns=TURNS)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                said.pieces.append(event.data.delta)
    else:
        result = await Runner.run(agent, prompt, max_turns=TURNS)
        said.pieces.append(result.final_output)
    counted = result.context_wrapper.usage
    said.usage = [counted.input_tokens, counted.output_tokens, counted.total_tokens]
    return result


async def answer(job: Job) -> Saw:
    said = Said()
    try:
        await _run(_agent(job), job.prompt, said, is_streamed=job.way == "stream")
    except Exception as error:  # noqa: BLE001 - a client that stumbles raises anything
        said.fail(error)
    return asdict(said)


async def call(job: Job) -> Saw:
    """The agent itself calls the functions and hands their results on."""
    called, answered = Said(), Said()

    def tool(function: dict[str, Theirs]) -> Theirs:
        async def invoke(context: Theirs, arguments: str) -> str:
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
    result = await _run(agent, job.question, answered, is_streamed=job.way == "stream")
    answered.pieces = [result.final_output]
    return {"called": asdict(called), "answered": asdict(answered)}


async def unknown_model(job: Job) -> Saw:
    return await _refused(job, _agent(job, model=job.missing_model))


async def bad_request(job: Job) -> Saw:
    return await _refused(job, _agent(job, settings={"temperature": job.bad_temperature}))


async def _refused(job: Job, agent: Theirs) -> Saw:
    try:
        await _run(agent, job.prompt, Said(), is_streamed=job.way == "stream")
    except APIStatusError as error:
        return told(error, error.status_code)
    return {"error": None}


async def cancel(job: Job) -> Saw:
    result = Runner.run_streamed(_agent(job, settings={"max_tokens": job.story_tokens}), job.story)
    pieces = 0
    async for event in result.stream_events():  # it ends by itself when the run is cancelled
        pieces += event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        if pieces == 2:
            result.cancel()
    return {"pieces": pieces}


if __name__ == "__main__":
    set_tracing_disabled(disabled=True)  # traces go home
    # One loop for all: what a client leaves behind belongs to it.
    with asyncio.Runner() as loop:

        def _run_in(scenario: Callable[[Job], Coroutine[Theirs, Theirs, Saw]]) -> Scenario:
            return lambda job: loop.run(scenario(job))

        scenarios = (answer, call, unknown_model, bad_request, cancel)
        answer_jobs({scenario.__name__: _run_in(scenario) for scenario in scenarios})
