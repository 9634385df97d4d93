"""Choices of the reference server: canned texts, tokens, log probabilities, token limits and stop strings.

There is no model. A few patterns choose the text, so that the same prompt always has the same answer.
"""

import re
from collections.abc import Iterable
from itertools import cycle, islice

import msgspec

from welldone.core.events import Json

_ALTERNATIVES = tuple("abcdefghijklmnopqrstuvwxyz")


def chat_logprobs(token: str, top_count: int) -> Json:
    """Return made-up log probabilities of a token in the format of chat."""
    top = [_entry(word, value) for word, value in _top_logprobs(token, top_count)]
    return {"content": [_entry(token, _logprob(token)) | {"top_logprobs": top}], "refusal": None}


def completion_logprobs(token: str, offset: int, top_count: int, *, is_first: bool) -> Json:
    """Return made-up log probabilities of a token in the format of completions; the first token of an echo has none."""
    top = None if is_first else dict(_top_logprobs(token, max(top_count, 1)))
    value = None if is_first else _logprob(token)
    return {"tokens": [token], "token_logprobs": [value], "top_logprobs": [top], "text_offset": [offset]}


def _logprob(token: str) -> float:
    return -0.01 * (1 + len(token))


def _top_logprobs(token: str, top_count: int) -> list[tuple[str, float]]:
    others = [word for word in _ALTERNATIVES if word != token][: max(0, top_count - 1)]
    return [(token, _logprob(token)), *((word, -3.0 - rank) for rank, word in enumerate(others))][:top_count]


def _entry(token: str, value: float) -> Json:
    return {"token": token, "logprob": value, "bytes": list(token.encode())}


EMOJI_TEXT = "Hello 👋🌍! Naïve café, 你好, привет 👩‍👩‍👧‍👦 🇺🇳 🎉"
"""Characters of two, three and four bytes in UTF-8, and grapheme clusters of several characters."""
REASONING_TEXT = "Somebody asks me something. I look for the words, and then I answer."
LONG_TEXT = " ".join(["Once upon a time there was a river. It ran down to the sea, and it never came to an end."] * 30)
_DEFAULT_COUNT = 700
"""Default for "count": about 1,400 tokens, more than any test reads."""
_COUNT_LIMIT = 2_000
_REPEAT_REQUEST = re.compile(
    r"\b(?:say|repeat|write|reply|answer|echo)\b[^:\n]{0,40}: ?(.*)", re.IGNORECASE | re.DOTALL
)
_COUNT_REQUEST = re.compile(r"\bcount\b(?:.{0,80}?\bto (\d{1,6})\b)?", re.IGNORECASE | re.DOTALL)
_QUOTED = re.compile(r'["“]([^"“”]*)["”]')
_LONG_REQUEST = re.compile(r"\b(?:story|essay|poem|novel|long|paragraphs?)\b", re.IGNORECASE)


def text_for(prompt: str, default: str) -> str:
    """Return the answer to a prompt."""
    if match := _REPEAT_REQUEST.search(prompt):
        text = match[1].strip()
        quoted = _QUOTED.fullmatch(text)
        return text if quoted is None else quoted[1]
    if match := _COUNT_REQUEST.search(prompt):
        last = min(int(match[1] or _DEFAULT_COUNT), _COUNT_LIMIT)
        return ", ".join(str(number) for number in range(1, last + 1))
    if match := _QUOTED.search(prompt):
        return match[1]
    if "emoji" in prompt.lower():
        return EMOJI_TEXT
    return LONG_TEXT if _LONG_REQUEST.search(prompt) else default


class MockToolCall(msgspec.Struct, frozen=True):
    """A generated tool call; `arguments` are the tokens of its JSON or text."""

    name: str
    arguments: tuple[str, ...]
    is_custom: bool = False


class MockChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A generated choice; texts are tuples of tokens."""

    reasoning: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    tool_calls: tuple[MockToolCall, ...] = ()
    finish_reason: str = "stop"
    stop_string: str | None = None
    """The stop string that ended the text."""
    generated_tokens: int = 0
    """Number of tokens, including those that are not sent."""
    echo: tuple[str, ...] = ()
    """The prompt, if it is repeated before the text."""


def truncate_to_limit(choice: MockChoice, max_tokens: int) -> MockChoice:
    """Truncate a choice to a token limit. A choice that uses all tokens finishes with `length`."""
    reasoning = choice.reasoning[:max_tokens]
    remaining = max_tokens - len(reasoning)
    text = choice.text[:remaining]
    remaining -= len(text)
    calls = []
    for tool_call in choice.tool_calls:
        if remaining < 2:  # a call needs its name and at least one token of arguments
            break
        calls.append(MockToolCall(tool_call.name, tool_call.arguments[: remaining - 1], tool_call.is_custom))
        remaining -= 1 + len(calls[-1].arguments)
    generated = max_tokens - remaining
    is_truncated = generated >= max_tokens or len(calls) < len(choice.tool_calls)
    return msgspec.structs.replace(
        choice,
        reasoning=reasoning,
        text=text,
        tool_calls=tuple(calls),
        finish_reason="length" if is_truncated else choice.finish_reason,
        generated_tokens=generated,
    )


def truncate_at_stop(choice: MockChoice, stops: list[str]) -> MockChoice:
    """Truncate a choice before the stop string that is complete first."""
    text = "".join(choice.text)
    matches = [(start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0]
    if not matches:
        return choice
    end, start, stop = min(matches)
    tokens: list[str] = []
    offset = generated = 0
    for token in choice.text:
        if offset >= end:
            break
        generated += 1
        if offset < start:
            tokens.append(token[: start - offset])
        offset += len(token)
    generated += len(choice.reasoning)
    return msgspec.structs.replace(
        choice, text=tuple(tokens), tool_calls=(), finish_reason="stop", stop_string=stop, generated_tokens=generated
    )


# Words of up to five letters, parts of longer words, and single punctuation characters.
_TOKEN = re.compile(r"\s*\w{1,5}|\s*[^\w\s]|\s+")


def tokenize(text: str) -> tuple[str, ...]:
    """Split a text into tokens, whose concatenation is the text. A prefix that ends with a token has the same ones."""
    return tuple(_TOKEN.findall(text))


def repeat_to_length(text: str, count: int) -> str:
    """Return exactly `count` tokens of the text, which is repeated if it is shorter."""
    first = tokenize(text)
    repeated = tokenize(text if text[:1].isspace() else f" {text}")
    return "".join([*first, *islice(cycle(repeated), max(0, count - len(first)))][:count]) if first else ""


def count_tokens(texts: Iterable[str], limit: int) -> int:
    """Count the tokens of the texts, up to `limit`."""
    return sum(1 for _ in islice((token for text in texts for token in _TOKEN.finditer(text)), limit))
