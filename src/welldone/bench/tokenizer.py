"""Tokenizers from files. Only this module imports `tokenizers`, which is an extra."""

from pathlib import Path

import msgspec
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from welldone.engines.models.gguf import GgufError, read_values

TOKENIZER_LIMIT_BYTES = 256 * 2**20
"""The largest known one, with 262,144 tokens, has 33 MB."""
_ADDED_TOKEN_TYPE = 4  # in llama.cpp: tokens that are matched in the text before all others
_SENTENCEPIECE_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # a blank in SentencePiece

# Pre-tokenizers: how a text is split before its pieces become tokens. The names are those of llama.cpp. Texts of models
# with other pre-tokenizers are split like those of GPT-2.
_SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLIT_PATTERNS = {
    **dict.fromkeys(("llama-bpe", "llama3", "dbrx", "smaug-bpe"), _SPLIT_PATTERN.format(digits="{1,3}")),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _SPLIT_PATTERN.format(digits="")),
}
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
_GPT2 = ("gpt-2", "default", "", "phi-2", "jina-es", "jina-de", "gigachat", "mpt", "olmo")
_VALUES_PREFIX = "tokenizer.ggml."
_IGNORE_MERGES = ("llama-bpe", "llama3")
"""Pre-tokenizers whose pieces are looked up as whole tokens before merges apply."""


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True, rename=lambda name: _VALUES_PREFIX + name):
    """The tokenizer metadata of a file. Missing values are empty."""

    model: str
    """Family of the tokenizer: `gpt2`, `llama`, …"""
    pre: str = ""
    """Name of the pre-tokenizer in llama.cpp."""
    tokens: tuple[str, ...] = ()
    merges: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    token_type: tuple[int, ...] = ()
    add_space_prefix: bool = True


def read_vocabulary(path: Path) -> Vocabulary:
    """Read the vocabulary of a file; raises `ValueError` if there is none."""
    try:
        return msgspec.convert(read_values(path, _VALUES_PREFIX), Vocabulary)
    except GgufError as error:
        raise ValueError(f"{path.name} {error}") from None
    except msgspec.ValidationError:
        raise ValueError(f"{path.name} has no readable vocabulary") from None


class FileCounter:
    """Counts tokens with a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.name = name

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def truncate(self, text: str, tokens: int) -> str:
        """Return the longest prefix with at most so many tokens."""
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        while tokens > 0 and len(offsets) > tokens:
            short = text[: offsets[tokens - 1][1]]
            if self.count(short) <= tokens:
                return short
            tokens -= 1  # the cut word may be tokenized differently
        return text if tokens > 0 else ""


def from_json(path: Path, name: str) -> FileCounter:
    """Load a `tokenizer.json`; raises `ValueError` if it is not one."""
    try:
        if path.stat().st_size > TOKENIZER_LIMIT_BYTES:
            raise ValueError(f"{path} has more than {TOKENIZER_LIMIT_BYTES // 2**20} MB: it is not a tokenizer")
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    try:
        return FileCounter(Tokenizer.from_buffer(data), name)
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise ValueError(f"{path} is not a readable tokenizer: {str(error)[:200]}") from None


def from_gguf(path: Path) -> FileCounter:
    """Load the tokenizer of a GGUF file; raises `ValueError` if it is missing or of an unsupported kind."""
    vocabulary = read_vocabulary(path)
    match vocabulary.model:
        case "gpt2":
            tokenizer = _byte_level_bpe(vocabulary)
        case "llama":
            tokenizer = _sentencepiece_bpe(vocabulary)
        case model:
            raise ValueError(f"{path.name} has a tokenizer of the kind {model[:40]!r}; supported are gpt2 and llama")
    typed_tokens = zip(vocabulary.tokens, vocabulary.token_type, strict=False)
    added = [text for text, token_type in typed_tokens if token_type == _ADDED_TOKEN_TYPE]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added])
    name = f"the vocabulary of {path.name}"
    if vocabulary.model == "gpt2" and vocabulary.pre not in (*_SPLIT_PATTERNS, *_SINGLE_DIGITS, *_GPT2):
        name += f", split like GPT-2 because {vocabulary.pre[:40]!r} is unknown"
    return FileCounter(tokenizer, name)


def _byte_level_bpe(vocabulary: Vocabulary) -> Tokenizer:
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in vocabulary.merges)]
    has_split = vocabulary.pre in _SPLIT_PATTERNS
    steps: list[pre_tokenizers.PreTokenizer] = []
    if has_split:
        steps.append(pre_tokenizers.Split(Regex(_SPLIT_PATTERNS[vocabulary.pre]), "isolated"))
    elif vocabulary.pre in _SINGLE_DIGITS:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not has_split))
    tokenizer = _make_bpe(vocabulary, pairs, is_whole_first=vocabulary.pre in _IGNORE_MERGES)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return tokenizer


def _sentencepiece_bpe(vocabulary: Vocabulary) -> Tokenizer:
    """Return a tokenizer that merges the pair with the best score: merges are ordered by score."""
    scores = dict(zip(vocabulary.tokens, vocabulary.scores, strict=False))
    pairs = [
        (-scores[token], at, (token[:at], token[at:]))
        for token in scores
        for at in range(1, len(token))
        if token[:at] in scores and token[at:] in scores
    ]
    tokenizer = _make_bpe(vocabulary, [pair for _, _, pair in sorted(pairs)], has_bytes=True)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SENTENCEPIECE_SPACE)]
    if vocabulary.add_space_prefix:
        steps.insert(0, normalizers.Prepend(_SENTENCEPIECE_SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def _make_bpe(
    vocabulary: Vocabulary, pairs: list[tuple[str, str]], *, is_whole_first: bool = False, has_bytes: bool = False
) -> Tokenizer:
    numbers = {text: number for number, text in enumerate(vocabulary.tokens)}
    known = [(left, right) for left, right in pairs if left in numbers and right in numbers and left + right in numbers]
    unknown = "<unk>" if has_bytes and "<unk>" in numbers else None
    model = models.BPE(numbers, known, unk_token=unknown, byte_fallback=has_bytes, ignore_merges=is_whole_first)
    return Tokenizer(model)
