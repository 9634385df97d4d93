"""Who counts tokens: a tokenizer of a file, the server's own, or nobody.

Nothing is fetched. A name of the Hugging Face hub is looked for among what was fetched before.
"""

import importlib
import mmap
import os
import re
import struct
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from welldone.bench.words import ALL_WORDS
from welldone.engines.models.store import STRINGS_LIMIT, GgufError, read_metadata

SERVER = "server"
PostJson = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any] | None]]
"""What the server says to a body posted to a path of its root; None where it has no such path."""

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PIECE = re.compile(r"\s*(?:[^\W_]+|[^\w\s]|_)|\s+")
"""A word or a sign, with the blanks before it."""
_BYTES_PER_TOKEN = 8
"""Of a word that is not known: the tokenizers of today have most English words of up to eight letters as one token."""


class BenchTokenCounter(Protocol):
    """Counts the tokens of texts."""

    name: str
    """What it is, in words, for the report."""

    def count(self, text: str) -> int:
        """How many tokens a text has, without those of a chat template."""

    def truncate(self, text: str, tokens: int) -> str:
        """The beginning of a text, with so many tokens at most."""


async def find_token_counter(
    spec: str | None, post: PostJson, env: Mapping[str, str] = os.environ
) -> BenchTokenCounter | None:
    """Who counts tokens: a `tokenizer.json`, its folder, a GGUF, `server`, or a name of the hub that is here already.

    None where there is none: then the server's usage numbers are all there is. `why_none` says why.

    Raises:
        ValueError: a file is named and cannot be used. The message is one sentence.
    """
    if spec is None:
        return None
    return await _server_counter(post) if spec == SERVER else _local_counter(spec, env)


def why_no_counter(spec: str | None) -> str:
    """Why nobody counts tokens, in words."""
    if spec is None:
        return "no tokenizer is named"
    if spec == SERVER:
        return "the server has no /tokenize that can be used"
    return f"the tokenizer {spec} is not on this machine, and nothing is fetched"


# ---- files


def _local_counter(spec: str, env: Mapping[str, str]) -> BenchTokenCounter | None:
    path = Path(spec)
    if path.exists():
        return _file_counter(path, spec)
    if path.suffix in (".json", ".gguf"):
        raise ValueError(f"there is no tokenizer file {spec}")
    cached = _cached_folder(spec, env)
    return None if cached is None else _file_counter(cached, spec)


class _TokenizerModule(Protocol):
    """What `bench/tokenizer.py` gives."""

    def from_json(self, path: Path, name: str) -> BenchTokenCounter: ...
    def from_gguf(self, path: Path) -> BenchTokenCounter: ...


def _load_tokenizer_module() -> _TokenizerModule:
    """The part that knows tokenizers; it is loaded when it is needed, since its library is an extra."""
    try:
        return cast("_TokenizerModule", importlib.import_module("welldone.bench.tokenizer"))
    except ModuleNotFoundError as error:
        raise ValueError(f"a tokenizer needs the package {error.name}: pip install 'welldone[bench]'") from None


def _file_counter(path: Path, name: str) -> BenchTokenCounter:
    if path.suffix == ".gguf":
        return _load_tokenizer_module().from_gguf(path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"{path} has no tokenizer.json")
    return _load_tokenizer_module().from_json(file, name)


def _cached_folder(name: str, env: Mapping[str, str]) -> Path | None:
    """The folder that the hub's own tools keep a repository in, if it has a tokenizer."""
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


# ---- words


class WordCounter:
    """Counts word by word: knows how many tokens some words have, and guesses at the others."""

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
"""For prompts of about the right length where nobody counts."""


async def _server_counter(post: PostJson) -> BenchTokenCounter | None:
    """A counter that asks the server once, before the start: to ask for each text would be a load of its own.

    All words go in one text, a line each. The token that ends a line tells where one word ends and the next begins.
    """
    text = "".join(f" {word}\n" for word in ALL_WORDS)
    reply = await post("/tokenize", {"content": text, "prompt": text, "add_special_tokens": False})
    tokens = None if reply is None else reply.get("tokens")
    counts = _tokens_per_line(tokens) if isinstance(tokens, list) and tokens else []
    if len(counts) != len(ALL_WORDS):
        return None
    return WordCounter("the server's /tokenize, word by word", dict(zip(ALL_WORDS, counts, strict=True)))


def _tokens_per_line(tokens: Sequence[object]) -> list[int]:
    """How many tokens each line has."""
    newline = Tally(map(str, tokens)).most_common(1)[0][0]
    counts = [0]
    for token in tokens:
        if str(token) == newline:
            counts.append(0)
        else:
            counts[-1] += 1
    return counts[:-1]


# The vocabulary that a GGUF file carries: its tokens, and how they are put together.
#
# Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md


_TOKENIZER_PREFIX = "tokenizer.ggml."
_STRING_TYPE, _ARRAY_TYPE = 8, 9
_NUMBER_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The kinds of numbers, as the format numbers them and as `struct` names them."""
_COUNT_OFFSET = 16  # behind the magic, the version and the number of tensors


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says of its tokenizer. What it does not say is empty."""

    model: str
    """`gpt2`, `llama`, …: the family of tokenizers."""
    pre: str = ""
    """How a text is split before its pieces become tokens, as llama.cpp names it."""
    tokens: tuple[str, ...] = ()
    merges: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    token_type: tuple[int, ...] = ()
    add_space_prefix: bool = True


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary in this file; `ValueError` in one sentence if there is none."""
    try:
        read_metadata(path)  # it trusts nothing: behind it every size is known to lie within the file
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            values = _GgufMetadataReader(data).values()
        return msgspec.convert(values, Vocabulary)
    except GgufError as error:
        raise ValueError(f"{path.name} {error}") from None
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (msgspec.ValidationError, struct.error, KeyError):
        raise ValueError(f"{path.name} has no vocabulary that can be read") from None


class _GgufMetadataReader:
    """A way through the header of a file that was found to be whole."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._offset = _COUNT_OFFSET

    def values(self) -> dict[str, object]:
        """What it says of its tokenizer."""
        found: dict[str, object] = {}
        for _ in range(self._number("Q")):
            name = self._text()
            kind = self._number("I")
            value = self._array() if kind == _ARRAY_TYPE else self._value(kind)
            if name.startswith(_TOKENIZER_PREFIX):
                found[name.removeprefix(_TOKENIZER_PREFIX)] = value
        return found

    def _number(self, fmt: str) -> int:
        """The next number. (Fractions and truth values come as they are; nobody who wants a number asks for them.)"""
        value: int = struct.unpack_from(f"<{fmt}", self._data, self._offset)[0]
        self._offset += struct.calcsize(f"<{fmt}")
        return value

    def _text(self) -> str:
        size = self._number("Q")
        self._offset += size
        return self._data[self._offset - size : self._offset].decode("utf-8", "replace")

    def _value(self, kind: int) -> str | int:
        return self._text() if kind == _STRING_TYPE else self._number(_NUMBER_FORMATS[kind])

    def _array(self) -> tuple[object, ...]:
        kind, count = self._number("I"), self._number("Q")
        if count > STRINGS_LIMIT:
            raise GgufError(f"has an array of {count:,} values; {STRINGS_LIMIT:,} is the most that is read")
        if kind == _STRING_TYPE:
            return tuple(self._text() for _ in range(count))
        form = f"<{count}{_NUMBER_FORMATS[kind]}"
        values = struct.unpack_from(form, self._data, self._offset)
        self._offset += struct.calcsize(form)
        return values
