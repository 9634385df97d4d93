"""The clients of the matrix: their capabilities, and the comparison of what they show with what the server sent."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from tests.clients.cases import Case, Choice
from tests.clients.client import Program
from tests.clients.programs.job import Result
from tests.clients.test_clients import PROGRAMS

NO_ERROR = "returns a failure as an answer"


@dataclass(frozen=True, kw_only=True)
class MatrixClient:
    """Client of the matrix and its capabilities."""

    title: str
    program: Program
    has_completions: bool = True
    has_buffered: bool = True
    has_tools: bool = True
    """It sends tools and returns tool calls."""
    has_choices: bool = True
    """It returns more than one choice."""
    has_finish: bool = True
    completions_usage: Literal["always", "if buffered", "never"] = "always"
    always_requests_usage: bool = False
    accepted_errors: frozenset[str] = frozenset()
    """Exceptions that it raises if a server did not follow the request."""

    def can_send(self, case: Case) -> bool:
        """Return whether the client can send the request of a case."""
        return (
            (self.has_completions or case.endpoint == "chat")
            and (self.has_buffered or case.is_stream)
            and (self.has_tools or "tools" not in case.parameters)
            and (self.has_choices or not case.has_several_choices)
        )

    def difference(self, case: Case, result: Result) -> str | None:
        """None if the client returns the reply, or raises an error for a failed server; else a description."""
        error: str | None = result["error"]
        if case.is_failure:
            return None if error else NO_ERROR
        if error:
            is_objection = case.may_raise and error.partition(":")[0] in self.accepted_errors
            return None if is_objection else error
        return self._compare(case, [Choice(*choice) for choice in result["choices"]], result["usage"])

    def _compare(self, case: Case, choices: list[Choice], usage: list[int] | None) -> str | None:
        if len(choices) != len(case.choices):
            return f"returns {len(choices)} choices of {len(case.choices)}"
        for shown, sent in zip(choices, case.choices, strict=True):
            if shown.text != sent.text:
                return "returns a different text"
            if _parsed(shown.calls) != _parsed(sent.calls):
                return "returns different tool calls"
            if self.has_finish and not _is_same_finish(shown, sent):
                return f"returns finish reason {shown.finish!r} instead of {sent.finish!r}"
        return "returns a different usage" if self._shows_usage(case) and usage != case.usage else None

    def _shows_usage(self, case: Case) -> bool:
        if case.usage is None or not (case.requests_usage or self.always_requests_usage):
            return False
        is_reported = self.completions_usage == "always" or (
            self.completions_usage == "if buffered" and not case.is_stream
        )
        return is_reported or case.endpoint == "chat"


def _is_same_finish(shown: Choice, sent: Choice) -> bool:
    """`stop` is correct after a named tool call; clients that cannot name a tool use `required` instead."""
    return shown.finish == sent.finish or bool(sent.calls and (shown.finish, sent.finish) == ("tool_calls", "stop"))


def _parsed(calls: list[list[Any]]) -> list[tuple[str, Any]]:
    return [(name, parsed(arguments)) for name, arguments in calls]


def parsed(arguments: Any) -> Any:  # noqa: ANN401 - any JSON
    """Parse arguments; truncated ones, which are not JSON, stay a string."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except json.JSONDecodeError:
        return arguments


MATRIX_CLIENTS = (
    MatrixClient(title="openai", program=PROGRAMS["openai-python"]),
    MatrixClient(
        title="openai `.stream()`",
        program=PROGRAMS["openai-python-helpers"],
        has_completions=False,
        has_buffered=False,
        # For an answer that reached its limit with strict tools, and for arguments that are not an object.
        accepted_errors=frozenset({"LengthFinishReasonError", "ValueError"}),
    ),
    MatrixClient(title="openai-node", program=PROGRAMS["openai-node"]),
    MatrixClient(
        title="openai-node `.stream()`",
        program=PROGRAMS["openai-node-helpers"],
        has_completions=False,
        has_buffered=False,
    ),
    MatrixClient(
        title="AI SDK",
        program=PROGRAMS["ai-sdk"],
        has_choices=False,
        accepted_errors=frozenset({"ToolChoiceViolationError"}),
    ),
    MatrixClient(
        title="LangChain",
        program=PROGRAMS["langchain"],
        has_choices=False,
        completions_usage="if buffered",
        accepted_errors=frozenset({"ValidationError"}),
    ),
    MatrixClient(
        title="Pydantic AI",
        program=PROGRAMS["pydantic-ai"],
        has_completions=False,
        has_choices=False,
        always_requests_usage=True,
    ),
    # Joins the choices of a stream into one.
    MatrixClient(title="LiteLLM", program=PROGRAMS["litellm"], has_choices=False),
    MatrixClient(
        title="llm",
        program=PROGRAMS["llm"],
        has_tools=False,
        has_choices=False,
        has_finish=False,
        completions_usage="never",
        always_requests_usage=True,
    ),
)
