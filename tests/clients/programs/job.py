"""What each program here is asked to do, and how it answers: a JSON line for a JSON line.

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


# Everything that a small model can choose is on a list, so that a forced call always ends.
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
    """One thing to try. All clients ask the same, so that their answers can be compared."""

    scenario: str
    base_url: str
    model: str
    key: str
    prompt: str = "Name three colours."
    max_tokens: int = 24
    # Long enough to be cut off in the middle.
    story: str = "Tell me a very long story about a ship and its crew."
    story_tokens: int = 600
    question: str = "What is the weather in Oslo tomorrow?"
    # Room for the longest legal arguments, however the model cuts them into tokens.
    call_tokens: int = 128
    tools: list[dict[str, Any]] = field(default_factory=lambda: [WEATHER, CLOCK])
    # What a tool says, whichever it is.
    tool_result: str = "12 degrees and rain"
    missing_model: str = "no-such-model"
    # No server takes it: OpenAI's limit is 2, llama.cpp's users go up to 5.
    bad_temperature: float = 99.0
    # The path that is asked: "chat", "completions", "responses" or "messages".
    endpoint: str = "chat"
    # How an answer is read: "whole", as a raw "stream", or by the "helper" that adds up a stream.
    way: str = "whole"
    # For `read`: what else the request asks for, in the words of the API.
    asks: dict[str, Any] = field(default_factory=dict)

    @property
    def is_stream(self) -> bool:
        return bool(self.asks.get("stream"))

    @property
    def asks_usage(self) -> bool:
        return bool(self.asks.get("stream_options", {}).get("include_usage"))

    @property
    def strict_tools(self) -> list[dict[str, Any]]:
        """The tools that are asked for, as helpers want them that parse what comes back."""
        return [{**tool, "function": {**tool["function"], "strict": True}} for tool in self.asks["tools"]]


# A value of a client's own library, or one that it takes: the types of most live in another environment.
Theirs: TypeAlias = Any
Saw: TypeAlias = dict[str, Any]
Scenario: TypeAlias = Callable[[Job], Saw]


@dataclass
class Said:
    """What a client has shown its user of one answer, also of one that broke off."""

    pieces: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[list[Any]] = field(default_factory=list)
    finish: str | None = None
    usage: list[int] | None = None
    error: str | None = None

    def call(self, name: str, arguments: str) -> None:
        """One more; its arguments as a value, or as they are where they are none, since the answer ended in them."""
        try:
            self.calls.append([name, json.loads(arguments)])
        except json.JSONDecodeError:
            self.calls.append([name, arguments])

    def fail(self, error: Exception) -> None:
        self.error = f"{type(error).__name__}: {error}"


def answer_jobs(scenarios: dict[str, Scenario]) -> None:
    """Answer each line of standard input with one line, until there are no more."""
    # Some clients print; what they print goes where no answer is awaited.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            job = Job(**json.loads(line))
            answers.write(json.dumps(_try(scenarios[job.scenario], job)) + "\n")
            answers.flush()


def _try(scenario: Scenario, job: Job) -> Saw:
    try:
        return scenario(job)
    except Exception:  # noqa: BLE001 - whatever a client raises is what the test wants to show
        return {"crash": traceback.format_exc()}


def told(error: Exception, status: int | None) -> Saw:
    """An error as the client gave it to its user."""
    return {"error": type(error).__name__, "status": status, "message": str(error)}


def heard(choices: list[list[Any]], usage: list[int] | None) -> Saw:
    """An answer as the client gave it to its user: of each choice the text, the calls and the finish reason."""
    return {"choices": choices, "usage": usage, "error": None}


def telling(read: Scenario) -> Scenario:
    """A scenario of which an error is an answer like any other: what the client raises, it tells its user."""

    def one(job: Job) -> Saw:
        try:
            return read(job)
        except Exception as error:  # noqa: BLE001 - a client that stumbles raises anything
            return {"choices": [], "usage": None, "error": f"{type(error).__name__}: {error}"}

    return one
