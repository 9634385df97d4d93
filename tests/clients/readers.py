"""The clients of the matrix: what each can ask for and show, and whether what it shows is what the server sent."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from tests.clients.cases import Case, Choice
from tests.clients.client import Program
from tests.clients.programs.job import Saw
from tests.clients.test_clients import PROGRAMS

NO_ERROR = "takes a failure for an answer"


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One client."""

    title: str
    program: Program
    has_completions: bool = True
    has_whole: bool = True
    has_tools: bool = True
    """Tools can be offered, and calls are shown."""
    has_choices: bool = True
    """More than one."""
    has_finish: bool = True
    completions_usage: Literal["told", "of whole ones", "untold"] = "told"
    always_asks_usage: bool = False
    objections: frozenset[str] = frozenset()
    """The errors by which it tells that a server has not done as it was told."""

    def can_ask(self, case: Case) -> bool:
        """Whether the request of this case can be made with it at all."""
        return (
            (self.has_completions or case.endpoint == "chat")
            and (self.has_whole or case.is_stream)
            and (self.has_tools or "tools" not in case.asks)
            and (self.has_choices or not case.wants_choices)
        )

    def what_is_wrong(self, case: Case, saw: Saw) -> str | None:
        """In a few words; None where it shows what the server sent, or an error where the server failed."""
        error: str | None = saw["error"]
        if case.is_failure:
            return None if error else NO_ERROR
        if error:
            is_objection = case.is_arguable and error.partition(":")[0] in self.objections
            return None if is_objection else error
        return self._compare(case, [Choice(*choice) for choice in saw["choices"]], saw["usage"])

    def _compare(self, case: Case, heard: list[Choice], usage: list[int] | None) -> str | None:
        if len(heard) != len(case.choices):
            return f"shows {len(heard)} choices of {len(case.choices)}"
        for mine, theirs in zip(heard, case.choices, strict=True):
            if mine.text != theirs.text:
                return "shows another text"
            if _parsed(mine.calls) != _parsed(theirs.calls):
                return "shows other calls"
            if self.has_finish and not _is_same_end(mine, theirs):
                return f"shows the finish reason {mine.finish!r} for {theirs.finish!r}"
        return "shows another usage" if self._shows_usage(case) and usage != case.usage else None

    def _shows_usage(self, case: Case) -> bool:
        if case.usage is None or not (case.asks_usage or self.always_asks_usage):
            return False
        is_told = self.completions_usage == "told" or (self.completions_usage == "of whole ones" and not case.is_stream)
        return is_told or case.endpoint == "chat"


def _is_same_end(mine: Choice, theirs: Choice) -> bool:
    """A call that ends with `stop` is right where the tool was named; clients that cannot name one demand any."""
    return mine.finish == theirs.finish or bool(theirs.calls and (mine.finish, theirs.finish) == ("tool_calls", "stop"))


def _parsed(calls: list[list[Any]]) -> list[tuple[str, Any]]:
    return [(name, parsed(arguments)) for name, arguments in calls]


def parsed(arguments: Any) -> Any:  # noqa: ANN401 - any JSON
    """Arguments as a value; as they are where they are no JSON, since the answer has ended within them."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except json.JSONDecodeError:
        return arguments


READERS = (
    Reader(title="openai", program=PROGRAMS["openai-python"]),
    Reader(
        title="openai `.stream()`",
        program=PROGRAMS["openai-python-helpers"],
        has_completions=False,
        has_whole=False,
        # Of an answer that reached its limit with strict tools, and of arguments that begin as no object does.
        objections=frozenset({"LengthFinishReasonError", "ValueError"}),
    ),
    Reader(title="openai-node", program=PROGRAMS["openai-node"]),
    Reader(
        title="openai-node `.stream()`",
        program=PROGRAMS["openai-node-helpers"],
        has_completions=False,
        has_whole=False,
    ),
    Reader(
        title="AI SDK",
        program=PROGRAMS["ai-sdk"],
        has_choices=False,
        objections=frozenset({"ToolChoiceViolationError"}),
    ),
    Reader(
        title="LangChain",
        program=PROGRAMS["langchain"],
        has_choices=False,
        completions_usage="of whole ones",
        objections=frozenset({"ValidationError"}),
    ),
    Reader(
        title="Pydantic AI",
        program=PROGRAMS["pydantic-ai"],
        has_completions=False,
        has_choices=False,
        always_asks_usage=True,
    ),
    # It joins the choices of a stream into one.
    Reader(title="LiteLLM", program=PROGRAMS["litellm"], has_choices=False),
    Reader(
        title="llm",
        program=PROGRAMS["llm"],
        has_tools=False,
        has_choices=False,
        has_finish=False,
        completions_usage="untold",
        always_asks_usage=True,
    ),
)
