"""The clients of the matrix: what each can ask for and show, and whether what it shows is what the server sent."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.clients.cases import Case, Choice
from tests.clients.client import Program
from tests.clients.programs.job import Saw
from tests.clients.test_clients import PROGRAMS


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One client."""

    title: str
    program: Program
    reads_completions: bool = True
    reads_whole: bool = True
    reads_tools: bool = True
    """Tools can be offered, and calls are shown."""
    reads_choices: bool = True
    """More than one."""
    shows_finish: bool = True
    always_asks_usage: bool = False

    def can_ask(self, case: Case) -> bool:
        """Whether the request of this case can be made with it at all."""
        has_choices = "prompt" in case.asks or case.asks.get("n", 1) > 1
        return (
            (self.reads_completions or case.endpoint == "chat")
            and (self.reads_whole or case.is_stream)
            and (self.reads_tools or "tools" not in case.asks)
            and (self.reads_choices or not has_choices)
        )

    def what_is_wrong(self, case: Case, saw: Saw) -> str | None:
        """In a few words; None where it has shown what the server sent, or an error where the server failed."""
        if case.failure is not None:
            return None if saw["error"] else "takes a failure for an answer"
        if saw["error"]:
            return str(saw["error"])
        heard = [Choice(*choice) for choice in saw["choices"]]
        if len(heard) != len(case.choices):
            return f"{len(heard)} choices of {len(case.choices)}"
        for mine, theirs in zip(heard, case.choices, strict=True):
            if mine.text != theirs.text:
                return "another text"
            if _parsed(mine.calls) != _parsed(theirs.calls):
                return "other calls"
            if self.shows_finish and mine.finish != theirs.finish:
                return f"finish reason {mine.finish} for {theirs.finish}"
        is_asked = case.asks_usage or self.always_asks_usage
        if is_asked and case.usage and saw["usage"] != case.usage:
            return f"other usage"
        return None


def _parsed(calls: list[list[Any]]) -> list[list[Any]]:
    return [[name, _value(arguments)] for name, arguments in calls]


def _value(arguments: Any) -> Any:
    """Arguments as a value; as they are where they are no JSON, since the answer has ended within them."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except json.JSONDecodeError:
        return arguments


READERS = tuple(
    Reader(program=PROGRAMS[name], **more)
    for name, more in {
        "openai-python": {"title": "openai"},
        "openai-python-helpers": {"title": "openai .stream()", "reads_completions": False, "reads_whole": False},
        "openai-node": {"title": "openai-node"},
        "openai-node-helpers": {"title": "openai-node .stream()", "reads_completions": False, "reads_whole": False},
        "ai-sdk": {"title": "AI SDK", "reads_choices": False},
        "langchain": {"title": "LangChain", "reads_choices": False},
        "pydantic-ai": {
            "title": "Pydantic AI",
            "reads_completions": False,
            "reads_choices": False,
            "always_asks_usage": True,
        },
        "litellm": {"title": "LiteLLM"},
        "llm": {"title": "llm", "reads_tools": False, "reads_choices": False, "shows_finish": False, "always_asks_usage": True},
    }.items()
)
