"""Token counters: a tokenizer file, the server's /tokenize, or an estimate.

Nothing is downloaded. A name on the Hugging Face hub is looked up in the local cache.
"""

import os
import re
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from welldone.bench.words import ALL_WORDS
from welldone.config.settings import install_advice

SERVER = "server"
PostJson = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any] | None]]
"""Posts a body to a path of the server's root and returns the JSON reply; None if there is no such path."""

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PIECE = re.compile(r"\s*(?:[^\W_]+|[^\w\s]|_)|\s+")
"""A word or a punctuation mark, with the preceding blanks."""
_BYTES_PER_TOKEN = 8
"""Letters per token of an unknown word: current tokenizers have most English words of up to eight letters as one."""


class BenchTokenCounter(Protocol):
    """Counts the tokens of texts."""

    name: str
    """Description for the report."""

    def count(self, text: str) -> int:
        """Return the number of tokens, without those of a chat template."""

    def truncate(self, text: str, tokens: int) -> str:
        """Return the longest prefix with at most so many tokens."""


async def find_token_counter(
    spec: str | None, post: PostJson, env: Mapping[str, str] = os.environ
) -> BenchTokenCounter | None:
    """Return a counter for a `tokenizer.json`, its folder, a GGUF, `server`, or a cached name on the hub.

    None if there is none: then only the server's usage numbers are available. `why_no_counter` returns the reason.

    Raises:
        ValueError: the file cannot be used.
    """
    if spec is None:
        return None
    return await _server_counter(post) if spec == SERVER else _local_counter(spec, env)


def why_no_counter(spec: str | None) -> str:
    """Return why there is no token counter."""
    if spec is None:
        return "no tokenizer is given"
    if spec == SERVER:
        return "the server has no usable /tokenize"
    return f"the tokenizer {spec} is not on this machine, and nothing is downloaded"


def _local_counter(spec: str, env: Mapping[str, str]) -> BenchTokenCounter | None:
    path = Path(spec)
    if not path.exists() and path.suffix in (".json", ".gguf"):
        raise ValueError(f"there is no tokenizer file {spec}")
    location = path if path.exists() else _cached_folder(spec, env)
    return None if location is None else _file_counter(location, spec)


def _file_counter(path: Path, name: str) -> BenchTokenCounter:
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"{path} has no tokenizer.json")
    try:
        from welldone.bench import tokenizer  # its library is an extra
    except ModuleNotFoundError as error:
        raise ValueError(f"a tokenizer needs the package {error.name}: {install_advice('bench')}") from None
    return tokenizer.from_gguf(path) if path.suffix == ".gguf" else tokenizer.from_json(file, name)


def _cached_folder(name: str, env: Mapping[str, str]) -> Path | None:
    """Return the cache folder of a repository on the hub, if it has a tokenizer."""
    if not _HUB_NAME.fullmatch(name):
        return None
    home = Path(env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface")
    folder = Path(env.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    try:
        main = (folder / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    snapshots = sorted(folder.glob("snapshots/*/tokenizer.json"), key=lambda file: file.parent.name != main)
    return snapshots[0].parent if snapshots else None


class WordCounter:
    """Counts word by word, with known token counts for some words and an estimate for the others."""

    def __init__(self, name: str, token_counts: Mapping[str, int]) -> None:
        self.name = name
        self._token_counts = token_counts

    def count(self, text: str) -> int:
        return sum(self._tokens(piece) for piece in _PIECE.findall(text))

    def truncate(self, text: str, tokens: int) -> str:
        end = 0
        for piece in _PIECE.finditer(text):
            tokens -= self._tokens(piece[0])
            if tokens < 0:
                break
            end = piece.end()
        return text[:end]

    def _tokens(self, piece: str) -> int:
        word = piece.strip()
        known = self._token_counts.get(word)
        return known if known is not None else -(-len(word.encode()) // _BYTES_PER_TOKEN)


ESTIMATED_COUNTER: BenchTokenCounter = WordCounter("a token for each word and sign", {})
"""For prompts of about the right length without a tokenizer."""


async def _server_counter(post: PostJson) -> BenchTokenCounter | None:
    """Return a counter from one request to the server before the start: a request per text would be a load of its own.

    All words are sent in one text, one per line. The token that ends a line separates the counts of the words.
    """
    text = "".join(f" {word}\n" for word in ALL_WORDS)
    reply = await post("/tokenize", {"content": text, "prompt": text, "add_special_tokens": False})
    tokens = None if reply is None else reply.get("tokens")
    counts = _tokens_per_line(tokens) if isinstance(tokens, list) and tokens else []
    if len(counts) != len(ALL_WORDS):
        return None
    return WordCounter("the server's /tokenize, word by word", dict(zip(ALL_WORDS, counts, strict=True)))


def _tokens_per_line(tokens: Sequence[object]) -> list[int]:
    """Return the number of tokens of each line."""
    texts = list(map(str, tokens))
    newline = Tally(texts).most_common(1)[0][0]
    ends = [-1, *(number for number, text in enumerate(texts) if text == newline)]
    return [later - sooner - 1 for sooner, later in pairwise(ends)]
