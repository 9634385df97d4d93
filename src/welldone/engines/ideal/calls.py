"""Which tools are called, and with what: found in the words of the prompt."""

import json
import re
from itertools import product

from welldone.engines.ideal.requests import MockChatRequest, MockToolChoice, MockCustomTool, MockFunction
from welldone.engines.ideal.said import MockToolCall
from welldone.engines.ideal.samples import SchemaSampler
from welldone.engines.ideal.tokens import tokenize

_TOOL_CALLS_LIMIT = 8  # of one answer; tests ask for two
_WORD = re.compile(r"[A-Za-z]+")
_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_PROPER_NAME = re.compile(r"(?<![.!?:] )(?<!^)\b[A-Z][a-z]+(?: [A-Z][a-z]+){0,3}\b", re.MULTILINE)
"""Words that are written large and begin no sentence."""
# Words that tell nothing of what a tool is about.
_STOP_WORDS = frozenset(
    (
        *("a", "about", "all", "an", "and", "at", "by", "for", "from", "in", "into", "is", "it", "of", "on", "or"),
        *("some", "the", "to", "up", "current", "given", "now", "add", "call", "fetch", "find", "get", "give", "list"),
        *("look", "make", "query", "read", "return", "run", "search", "send", "set", "show", "tell"),
    )
)


def tool_calls_for(request: MockChatRequest) -> tuple[MockToolCall, ...]:
    """The calls that answer a request; none where it is answered with text."""
    called = _selected_functions(request)
    names = proper_names(request.prompt)
    is_one = isinstance(request.tool_choice, MockToolChoice) or request.parallel_tool_calls is False
    if not is_one and "both" in request.prompt.lower() and len(called) * max(1, len(names)) == 1:
        names = [*names, "something", "something"][:2]
    words: list[tuple[str, ...]] = [(name,) for name in names] or [()]
    pairs = list(product(called, words))
    kept = pairs[: 1 if is_one else _TOOL_CALLS_LIMIT]
    return tuple(
        MockToolCall(function.name, arguments_for(function, request.prompt, said), isinstance(function, MockCustomTool))
        for function, said in kept
    )


def arguments_for(function: MockFunction, prompt: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments of a call, as pieces of JSON; of a custom tool, the words of the prompt."""
    if isinstance(function, MockCustomTool):
        return tokenize(" ".join(words) or prompt)
    schema = {"type": "object"} | (function.parameters or {})
    return tokenize(json.dumps(SchemaSampler(schema, prompt, words).sample(), ensure_ascii=False))


def proper_names(prompt: str) -> list[str]:
    """The names in a prompt, each once."""
    return list(dict.fromkeys(_PROPER_NAME.findall(prompt)))


def _selected_functions(request: MockChatRequest) -> list[MockFunction]:
    if request.tool_choice == "none":
        return []
    if isinstance(request.tool_choice, MockToolChoice):
        wanted = request.tool_choice.name
        return [function for function in request.callable_functions if function.name == wanted][:1]
    mentioned = [function for function in request.callable_functions if is_mentioned(function, request.prompt)]
    if request.tool_choice == "required":
        return mentioned or request.callable_functions[:1]
    return [] if request.messages[-1].role == "tool" else mentioned


def is_mentioned(function: MockFunction, prompt: str) -> bool:
    """Whether the prompt has the tool's name, a word of it, or the main word of its description."""
    if function.name in prompt:
        return True
    described = [word.lower() for word in _WORD.findall(function.description or "")[1:]]  # the first one is a verb
    main = [word for word in described if word not in _STOP_WORDS][:1]
    named = [piece.lower() for piece in _NAME_PART.findall(function.name)]
    words = {word for word in [*named, *main] if word not in _STOP_WORDS}
    return not words.isdisjoint(word.lower() for word in _WORD.findall(prompt))
