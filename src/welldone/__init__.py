"""OpenAI-compatible streaming, well `[DONE]`: repair, write, read and judge streams. See docs/python.md.

The names are loaded when they are used: the commands import this package on every start.
"""

from importlib import import_module

__version__ = "0.2.0"

TYPE_CHECKING = False  # as in typing, whose import takes 10 ms; type checkers take it for true

if TYPE_CHECKING:
    from welldone import asgi, wsgi
    from welldone.core.catalog import RULES, Rule
    from welldone.core.envelope import Envelope
    from welldone.core.events import (
        ChoiceStart,
        Event,
        EventOrderError,
        Failure,
        Finish,
        KeepAlive,
        Logprobs,
        Reasoning,
        Refusal,
        Text,
        ToolArguments,
        ToolCall,
        UnknownFields,
        Usage,
        WelldoneError,
    )
    from welldone.core.repair_log import RepairEntry, RepairResult
    from welldone.library.answer_stream import FinishReason, LogprobEntries, SendFunction, UsageCounts
    from welldone.library.arguments import EndpointName, RequestBody
    from welldone.library.linting import InvalidStreamError, assert_valid, lint
    from welldone.library.reading import AsyncEventStream, EventParser, EventStream, acollect, aparse, collect, parse
    from welldone.library.repairing import RepairedResponse, StreamRepairer, arepair, repair, repair_response
    from welldone.library.writing import (
        STREAM_HEADERS,
        ChatStream,
        CompletionsStream,
        MessagesStream,
        ResponsesStream,
    )
    from welldone.rules.judge import LintFinding, LintReport, LintVerdict

__all__ = [
    "RULES",
    "STREAM_HEADERS",
    "AsyncEventStream",
    "ChatStream",
    "ChoiceStart",
    "CompletionsStream",
    "EndpointName",
    "Envelope",
    "Event",
    "EventOrderError",
    "EventParser",
    "EventStream",
    "Failure",
    "Finish",
    "FinishReason",
    "InvalidStreamError",
    "KeepAlive",
    "LintFinding",
    "LintReport",
    "LintVerdict",
    "LogprobEntries",
    "Logprobs",
    "MessagesStream",
    "Reasoning",
    "Refusal",
    "RepairEntry",
    "RepairResult",
    "RepairedResponse",
    "RequestBody",
    "ResponsesStream",
    "Rule",
    "SendFunction",
    "StreamRepairer",
    "Text",
    "ToolArguments",
    "ToolCall",
    "UnknownFields",
    "Usage",
    "UsageCounts",
    "WelldoneError",
    "__version__",
    "acollect",
    "aparse",
    "arepair",
    "asgi",
    "assert_valid",
    "collect",
    "lint",
    "parse",
    "repair",
    "repair_response",
    "wsgi",
]

_NAMES = {
    "library.answer_stream": ("FinishReason", "LogprobEntries", "SendFunction", "UsageCounts"),
    "library.arguments": ("EndpointName", "RequestBody"),
    "library.linting": ("InvalidStreamError", "assert_valid", "lint"),
    "library.reading": ("AsyncEventStream", "EventParser", "EventStream", "acollect", "aparse", "collect", "parse"),
    "library.repairing": ("RepairedResponse", "StreamRepairer", "arepair", "repair", "repair_response"),
    "library.writing": (
        "STREAM_HEADERS",
        "ChatStream",
        "CompletionsStream",
        "MessagesStream",
        "ResponsesStream",
    ),
    "core.catalog": ("RULES", "Rule"),
    "core.envelope": ("Envelope",),
    "core.repair_log": ("RepairEntry", "RepairResult"),
    "rules.judge": ("LintFinding", "LintReport", "LintVerdict"),
}
_MODULES = dict.fromkeys(__all__, "core.events") | {name: module for module, names in _NAMES.items() for name in names}
"""Modules by name: those without an entry above are events."""


if not TYPE_CHECKING:  # type checkers report unknown names

    def __getattr__(name: str) -> object:
        """Load a public name on its first use (PEP 562)."""
        if name in ("asgi", "wsgi"):
            return import_module(f"{__name__}.{name}")
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
