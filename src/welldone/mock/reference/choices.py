"""What one choice says, in tokens; and where a limit or a stop string ends it."""

import re
from collections.abc import Iterable
from itertools import cycle, islice

import msgspec

from welldone.protocol.events import Json

# Log probabilities, made up but well formed: in chat's shape, and in the older one of completions.


_ALTERNATIVES = tuple("abcdefghijklmnopqrstuvwxyz")


def chat_logprobs(token: str, top_count: int) -> Json:
    """Of one token: itself and, where asked for, what might have stood in its place."""
    likeliest = [_entry(word, value) for word, value in _top_logprobs(token, top_count)]
    return {"content": [_entry(token, _logprob(token)) | {"top_logprobs": likeliest}], "refusal": None}


def completion_logprobs(token: str, offset: int, top_count: int, *, is_first: bool) -> Json:
    """Of one token that begins at a place of the text. Before the very first there is nothing to expect it from."""
    likeliest = None if is_first else dict(_top_logprobs(token, max(top_count, 1)))
    value = None if is_first else _logprob(token)
    return {"tokens": [token], "token_logprobs": [value], "top_logprobs": [likeliest], "text_offset": [offset]}


def _logprob(token: str) -> float:
    return -0.01 * (1 + len(token))


def _top_logprobs(token: str, top_count: int) -> list[tuple[str, float]]:
    others = [word for word in _ALTERNATIVES if word != token][: max(0, top_count - 1)]
    return [(token, _logprob(token)), *((word, -3.0 - place) for place, word in enumerate(others))][:top_count]


def _entry(token: str, value: float) -> Json:
    return {"token": token, "logprob": value, "bytes": list(token.encode())}


# What is said to a prompt. There is no model: a few patterns choose the text, and the same prompt has the same one.


EMOJI_TEXT = "Hello 👋🌍! Naïve café, 你好, привет 👩‍👩‍👧‍👦 🇺🇳 🎉"
"""Characters of two, three and four bytes, and some that are made of several."""
REASONING_TEXT = "Somebody asks me something. I look for the words, and then I answer."
LONG_TEXT = " ".join(["Once upon a time there was a river. It ran down to the sea, and it never came to an end."] * 30)
_DEFAULT_COUNT = 700
"""How far is counted where nothing is said of it: some 1,400 tokens, more than any test waits for."""
_COUNT_LIMIT = 2_000
_REPEAT_REQUEST = re.compile(
    r"\b(?:say|repeat|write|reply|answer|echo)\b[^:\n]{0,40}: ?(.*)", re.IGNORECASE | re.DOTALL
)
_COUNT_REQUEST = re.compile(r"\bcount\b(?:.{0,80}?\bto (\d{1,6})\b)?", re.IGNORECASE | re.DOTALL)
_QUOTED = re.compile(r'["“]([^"“”]*)["”]')
_LONG_REQUEST = re.compile(r"\b(?:story|essay|poem|novel|long|paragraphs?)\b", re.IGNORECASE)


def text_for(prompt: str, default: str) -> str:
    """The answer to a prompt."""
    if found := _REPEAT_REQUEST.search(prompt):
        return _unquoted(found[1])
    if found := _COUNT_REQUEST.search(prompt):
        last = min(int(found[1] or _DEFAULT_COUNT), _COUNT_LIMIT)
        return ", ".join(str(number) for number in range(1, last + 1))
    if found := _QUOTED.search(prompt):
        return found[1]
    if "emoji" in prompt.lower():
        return EMOJI_TEXT
    return LONG_TEXT if _LONG_REQUEST.search(prompt) else default


def tool_result_text(results: list[str]) -> str:
    """The answer to what tools have given."""
    return f"The result is: {'; '.join(results)}"


def _unquoted(text: str) -> str:
    found = _QUOTED.fullmatch(text.strip())
    return text.strip() if found is None else found[1]


class MockToolCall(msgspec.Struct, frozen=True):
    """A call of a tool."""

    name: str
    arguments: tuple[str, ...]
    is_custom: bool = False


class MockChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice."""

    reasoning: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    tool_calls: tuple[MockToolCall, ...] = ()
    finish_reason: str = "stop"
    stop_string: str | None = None
    """The stop string that ended it."""
    generated_tokens: int = 0
    """How many tokens it took, also those that are not sent."""
    echo: tuple[str, ...] = ()
    """The prompt, where it is sent again before the text."""


def truncate_to_limit(choice: MockChoice, max_tokens: int) -> MockChoice:
    """The same, up to so many tokens. Who uses up all of them was stopped by the limit."""
    reasoning = choice.reasoning[:max_tokens]
    left = max_tokens - len(reasoning)
    text = choice.text[:left]
    left -= len(text)
    calls = []
    for call in choice.tool_calls:
        if left < 2:  # a name and some of the arguments
            break
        calls.append(MockToolCall(call.name, call.arguments[: left - 1], call.is_custom))
        left -= 1 + len(calls[-1].arguments)
    spent = max_tokens - left
    is_over = spent >= max_tokens or len(calls) < len(choice.tool_calls)
    return msgspec.structs.replace(
        choice,
        reasoning=reasoning,
        text=text,
        tool_calls=tuple(calls),
        finish_reason="length" if is_over else choice.finish_reason,
        generated_tokens=spent,
    )


def truncate_at_stop(choice: MockChoice, stops: list[str]) -> MockChoice:
    """The same, up to the stop string that is complete first. Nothing of it is said, and all that stands before is."""
    text = "".join(choice.text)
    found = [(place + len(stop), place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    if not found:
        return choice
    end, begin, stop = min(found)
    kept: list[str] = []
    spoken = generated = 0
    for token in choice.text:
        if spoken >= end:
            break
        generated += 1
        if spoken < begin:
            kept.append(token[: begin - spoken])
        spoken += len(token)
    spent = len(choice.reasoning) + generated
    return msgspec.structs.replace(
        choice, text=tuple(kept), tool_calls=(), finish_reason="stop", stop_string=stop, generated_tokens=spent
    )


# The tokens of a model that is none: words up to five letters, pieces of longer ones, and single signs.


_TOKEN = re.compile(r"\s*\w{1,5}|\s*[^\w\s]|\s+")


def tokenize(text: str) -> tuple[str, ...]:
    """The text in tokens. They join to it, and so do those of any of its beginnings that ends where a token does."""
    return tuple(_TOKEN.findall(text))


def repeat_to_length(text: str, count: int) -> str:
    """So many tokens of the text, again from its start where it has fewer."""
    first = tokenize(text)
    again = tokenize(text if text[:1].isspace() else f" {text}")
    return "".join([*first, *islice(cycle(again), max(0, count - len(first)))][:count]) if first else ""


def count_tokens(texts: Iterable[str], limit: int) -> int:
    """How many tokens the texts have; it is not counted on beyond `most`."""
    return sum(1 for _ in islice((token for text in texts for token in _TOKEN.finditer(text)), limit))
