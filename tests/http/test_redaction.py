"""Redaction of secrets, plain and JSON-encoded."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.http.redaction import HIDDEN, SecretRedactor, any_of_pattern, is_weak_key

KEY = 'sk-"secret\\key'
LONGER = f"{KEY}-and-more"


def test_the_longest_matching_secret_is_redacted_completely() -> None:
    assert SecretRedactor([KEY, LONGER]).redact(f"{LONGER} {KEY}") == f"{HIDDEN} {HIDDEN}"


@table(
    ("text", "clean"),
    [
        (f"it was {LONGER[:12]}…", f"it was {HIDDEN}…"),
        (f"{LONGER[:12]} and {LONGER}{LONGER}", f"{HIDDEN} and {HIDDEN}{HIDDEN}"),
        (LONGER[:7], LONGER[:7]),
        (HIDDEN * 2, HIDDEN * 2),
    ],
)
def test_a_truncated_secret_is_redacted(text: str, clean: str) -> None:
    assert SecretRedactor([LONGER, f"{HIDDEN} is also a secret"]).redact(text) == clean


@pytest.mark.parametrize("text", [KEY.encode(), json.dumps(KEY).encode(), b"x" + KEY.encode() + b"x"])
def test_a_secret_is_found_in_every_encoding(text: bytes) -> None:
    secrets = SecretRedactor([KEY])
    assert secrets.occur_in(text)
    assert secrets.longest_bytes == len(json.dumps(KEY)) - 2


def test_redacted_json_is_still_json() -> None:
    value = {"a": [KEY, "x", 1], f"say {KEY}": 'a "quote" \\'}
    clean = SecretRedactor([KEY]).redact_json(json.dumps(value).encode())
    assert json.loads(clean) == {"a": [HIDDEN, "x", 1], f"say {HIDDEN}": 'a "quote" \\'}


def test_json_without_a_secret_is_unchanged() -> None:
    text = b'{"a" : "\\u0041"}'
    assert SecretRedactor([KEY]).redact_json(text) == text


@pytest.mark.parametrize("words", [[], ["ollama"], [""]])
def test_a_weak_key_is_not_treated_as_a_secret(words: list[str]) -> None:
    secrets = SecretRedactor(words)
    assert all(map(is_weak_key, words))
    assert secrets.redact("ollama says hello") == "ollama says hello"
    assert not secrets.occur_in(b"ollama")
    assert secrets.longest_bytes == 0


@given(st.sets(st.text("ab.(-\n", max_size=5), min_size=1), st.text("ab.(-\n"))
def test_the_pattern_of_many_words_finds_the_longest_match(words: set[str], text: str) -> None:
    plain = re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))))
    assert [found.span() for found in re.finditer(any_of_pattern(words), text)] == [
        found.span() for found in plain.finditer(text)
    ]


def test_each_of_a_thousand_keys_is_redacted() -> None:
    keys = [f"wd-{number:04}-{number * 7919:08}" for number in range(1_000)]
    secrets = SecretRedactor(keys)
    for key in keys[::100]:
        assert secrets.redact(f"a {key} b") == "a [hidden] b"
        assert secrets.occur_in(b"{" + key.encode() + b"}")
    assert not secrets.occur_in(b"wd-0001-00000000")
