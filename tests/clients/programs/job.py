"""Protocol of the client programs: one JSON line per job, one JSON line per result.

Only the standard library: this file is read in the environment of the tests and in those of the clients.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

City: TypeAlias = Literal["Paris", "Oslo"]
Days: TypeAlias = Literal[1, 2, 3]


# Every argument is an enum, so that a forced call of a small model always ends.
def _function(name: str, description: str, properties: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


CITY = {"type": "string", "enum": list(get_args(City))}
WEATHER = _function(
    "get_weather", "The weather of the next days.", {"city": CITY, "days": {"enum": list(get_args(Days))}}
)
CLOCK = _function("get_time", "The time of day.", {"city": CITY})


@dataclass(frozen=True, kw_only=True)
class Job:
    """One scenario to run. All clients send the same request, so that their answers can be compared."""

    scenario: str
    base_url: str
    model: str
    key: str
    prompt: str = "Name three colours."
    max_tokens: int = 24
    # Long enough that the client can cancel it midway.
    story: str = "Tell me a very long story about a ship and its crew."
    story_tokens: int = 600
    question: str = "What is the weather in Oslo tomorrow?"
    # Enough for the longest valid arguments, whatever the tokenizer.
    call_tokens: int = 128
    tools: list[dict[str, Any]] = field(default_factory=lambda: [WEATHER, CLOCK])
    # Result of every tool.
    tool_result: str = "12 degrees and rain"
    missing_model: str = "no-such-model"
    # Rejected by every server: OpenAI's limit is 2, and llama.cpp users go up to 5.
    bad_temperature: float = 99.0
    # API of the request: "chat", "completions", "responses" or "messages".
    endpoint: str = "chat"
    # How the answer is read: "whole", as a raw "stream", or with the "helper" that accumulates a stream.
    mode: str = "whole"
    # For `read`: further fields of the request, named as in the API.
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def is_stream(self) -> bool:
        return bool(self.parameters.get("stream"))

    @property
    def requests_usage(self) -> bool:
        return bool(self.parameters.get("stream_options", {}).get("include_usage"))

    @property
    def strict_tools(self) -> list[dict[str, Any]]:
        """The tools of the request with `strict`, which helpers that parse arguments require."""
        return [{**tool, "function": {**tool["function"], "strict": True}} for tool in self.parameters["tools"]]


# A value of a client library: the types of most exist only in the environment of the client.
ClientValue: TypeAlias = Any
Result: TypeAlias = dict[str, Any]
Scenario: TypeAlias = Callable[[Job], Result]


@dataclass
class ShownAnswer:
    """What a client returned to its user for one answer, including a partial one."""

    pieces: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[list[Any]] = field(default_factory=list)
    finish: str | None = None
    usage: list[int] | None = None
    error: str | None = None

    def call(self, name: str, arguments: str) -> None:
        """Add a tool call; arguments that are not JSON, because the answer ended early, stay a string."""
        try:
            self.calls.append([name, json.loads(arguments)])
        except json.JSONDecodeError:
            self.calls.append([name, arguments])

    def fail(self, error: Exception) -> None:
        self.error = f"{type(error).__name__}: {error}"


def serve_jobs(scenarios: dict[str, Scenario]) -> None:
    """Read jobs from standard input, one per line, and write one result per line."""
    # Some clients print to standard output: send that to standard error, so that only results are read.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as output:
        os.dup2(2, 1)
        for line in sys.stdin:
            job = Job(**json.loads(line))
            output.write(json.dumps(_run_job(scenarios[job.scenario], job)) + "\n")
            output.flush()


def _run_job(scenario: Scenario, job: Job) -> Result:
    try:
        return scenario(job)
    except Exception:  # noqa: BLE001 - a client may raise anything, and the test reports it
        return {"crash": traceback.format_exc()}


def error_result(error: Exception, status: int | None) -> Result:
    """Result for an error that the client raised."""
    return {"error": type(error).__name__, "status": status, "message": str(error)}


def answer_result(choices: list[list[Any]], usage: list[int] | None) -> Result:
    """Result for an answer: text, tool calls and finish reason of each choice."""
    return {"choices": choices, "usage": usage, "error": None}


def catching_errors(read: Scenario) -> Scenario:
    """Wrap a scenario so that an exception of the client becomes part of its result."""

    def run(job: Job) -> Result:
        try:
            return read(job)
        except Exception as error:  # noqa: BLE001 - a client may raise anything
            return {"choices": [], "usage": None, "error": f"{type(error).__name__}: {error}"}

    return run
