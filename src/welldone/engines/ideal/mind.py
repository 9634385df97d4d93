"""What is said to a prompt. There is no model: a few patterns choose the text, and the same prompt has the same one."""

import re

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
