"""Tiny language models with random weights: real GGUF files for llama.cpp, generated in a fraction of a second.

Their output is nonsense on purpose: thousands of tokens per second with control characters, quotes, tags and characters
that are split across tokens; one model also generates invalid UTF-8. The same code generates the same bytes.

The output is controlled as follows. Six numbers of each token's embedding encode what must follow the token (`Need`).
No layer writes to them, so the output layer can use them to make tokens that fit likely, with a bias per token. The
other numbers are random, and the layers mix the previous text into them.
"""

from collections.abc import Mapping
from pathlib import Path

from tests.models.gguf_writer import Array, Gguf, Kind, Value
from tests.models.vocabulary import (
    ADDED,
    CALL,
    CALL_END,
    CONTROLS,
    END,
    END_OF_TEXT,
    Mark,
    Need,
    Token,
    Vocabulary,
    vocabulary,
)
from tests.models.weights import Weights

SEED = 20240229
HERE = Path(__file__).parent

CONTEXT = 2048
WIDTH = 64
LAYERS = 2
HEADS, KEY_HEADS = 4, 2
HEAD_WIDTH = WIDTH // HEADS
HIDDEN = 128  # of the feed-forward part: twice the width
NEEDS = len(Need)
_SHAPES = (
    ("attn_q", HEADS * HEAD_WIDTH, WIDTH),
    ("attn_k", KEY_HEADS * HEAD_WIDTH, WIDTH),
    ("attn_v", KEY_HEADS * HEAD_WIDTH, WIDTH),
    ("attn_output", WIDTH, HEADS * HEAD_WIDTH),
    ("ffn_gate", HIDDEN, WIDTH),
    ("ffn_up", HIDDEN, WIDTH),
    ("ffn_down", WIDTH, HIDDEN),
)
"""Rows and columns of the matrices of a layer."""

# Found by experiment: nearly every character is complete, and a text at temperature 0 does not soon become periodic.
NEED_SIZE = 2.0
SPREAD = 0.14  # of the random part of the output layer: gives logits of about 1
REPEAT = -0.12  # weight of a token's own embedding, so that a token does not follow itself
MISFIT = -4.5  # bias of tokens that do not fit
BREAKING = -2.0  # the same, in the model with invalid UTF-8
NEVER = -6.0

# Bias per token; 1 adds about 1.7 to its logit. Quotes and brackets end JSON that a grammar enforces: without a bias,
# a string would continue until the last token.
CLOSERS = dict.fromkeys(('"', "}", "]", '"}'), 1.2)
SILENT = dict.fromkeys((*CONTROLS, *ADDED), NEVER)
# These end by themselves, within some hundred tokens. A tool call that is closed by its own token ends the answer; one
# that is closed letter by letter, which a grammar also allows, may be followed by another.
THINKING = {END: 0.2, "</think>": 1.4}
CALLING = {END: 0.4, CALL: 1.0, CALL_END: 0.6}


def chat_model() -> Gguf:
    """Return a chat model whose template supports tools. Only a grammar ends its answers."""
    return _model("tiny", (HERE / "chat.jinja").read_text(), {})


def thinking_model() -> Gguf:
    """Return a reasoning model: its template opens `<think>`. It ends its reasoning and its answer by itself."""
    return _model("tiny-thinking", (HERE / "thinking.jinja").read_text(), THINKING)


def calling_model() -> Gguf:
    """Return a chat model that starts tool calls within its text and ends by itself."""
    return _model("tiny-calling", (HERE / "chat.jinja").read_text(), CALLING)


def broken_model() -> Gguf:
    """Return a chat model that generates many incomplete characters."""
    return _model("tiny-broken", (HERE / "chat.jinja").read_text(), {}, misfit=BREAKING)


def reciting_model(name: str, *pieces: str) -> Gguf:
    """Return a chat model that answers with these pieces, new tokens, whatever the prompt is.

    One number of a token's embedding is set: the first for all ordinary tokens, another for each piece. The output
    layer makes the next piece likely, and the layers add nothing.
    """
    words = vocabulary()
    added = tuple(Token(piece.encode(), Mark.ADDED) for piece in pieces)
    words = Vocabulary((*words.tokens, *added), words.merges)
    places = {piece.encode(): place for place, piece in enumerate(pieces)}
    weights = Weights(SEED)
    for layer in range(LAYERS):
        for part, height, width in _SHAPES:
            weights.add_rows(f"blk.{layer}.{part}.weight", [[0.0] * width] * height)
        for part in ("attn_norm", "ffn_norm"):
            weights.add_same(f"blk.{layer}.{part}.weight", WIDTH, 1.0)
    own = [places.get(token.data, -1) + 1 for token in words.tokens]
    after = [len(pieces) if token.data == END.encode() else places.get(token.data, -1) for token in words.tokens]
    weights.add_rows("token_embd.weight", [[float(place == at) for at in range(WIDTH)] for place in own])
    weights.add_same("output_norm.weight", WIDTH, 1.0)
    weights.add_rows("output.weight", [[4.0 * (place == at) for at in range(WIDTH)] for place in after])
    return Gguf(_metadata(name, (HERE / "chat.jinja").read_text(), words), weights.tensors)


def _model(name: str, template: str, leanings: Mapping[str, float], misfit: float = MISFIT) -> Gguf:
    words = vocabulary()
    weights = Weights(SEED)
    _add_layers(weights)
    _add_ends(weights, words, {**CLOSERS, **SILENT, **leanings}, misfit)
    return Gguf(_metadata(name, template, words), weights.tensors)


def _metadata(name: str, template: str, words: Vocabulary) -> dict[str, Value]:
    return {
        "general.architecture": "llama",
        "general.name": name,
        "general.file_type": 0,  # F32
        "llama.vocab_size": len(words.tokens),
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KEY_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": HEAD_WIDTH,
        **tokenizer(words),
        "tokenizer.chat_template": template,
    }


def tokenizer(words: Vocabulary) -> dict[str, Value]:
    """Return the metadata of the vocabulary."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": Array(Kind.STRING, [token.text for token in words.tokens]),
        "tokenizer.ggml.token_type": Array(Kind.INT32, [token.mark for token in words.tokens]),
        "tokenizer.ggml.merges": Array(Kind.STRING, words.merges),
        "tokenizer.ggml.bos_token_id": words.number(END_OF_TEXT),
        "tokenizer.ggml.eos_token_id": words.number(END),
        "tokenizer.ggml.padding_token_id": words.number(END_OF_TEXT),
        "tokenizer.ggml.add_bos_token": False,
    }


def _add_layers(weights: Weights) -> None:
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        weights.add_same(f"{at}.attn_norm.weight", WIDTH, 1.0)
        weights.add_matrix(f"{at}.attn_q.weight", WIDTH, HEADS * HEAD_WIDTH, gain=1.5)
        weights.add_matrix(f"{at}.attn_k.weight", WIDTH, KEY_HEADS * HEAD_WIDTH, gain=1.5)
        weights.add_matrix(f"{at}.attn_v.weight", WIDTH, KEY_HEADS * HEAD_WIDTH)
        _add_writer(weights, f"{at}.attn_output.weight", HEADS * HEAD_WIDTH)
        weights.add_same(f"{at}.ffn_norm.weight", WIDTH, 1.0)
        weights.add_matrix(f"{at}.ffn_gate.weight", WIDTH, HIDDEN)
        weights.add_matrix(f"{at}.ffn_up.weight", WIDTH, HIDDEN)
        _add_writer(weights, f"{at}.ffn_down.weight", HIDDEN)


def _add_writer(weights: Weights, name: str, width: int) -> None:
    """Add a matrix whose result is added to the residual stream; it does not change the numbers of `Need`."""
    rows = [[0.0] * width] * NEEDS + weights.rows(WIDTH - NEEDS, width, width**-0.5)
    weights.add_rows(name, rows)


def _add_ends(weights: Weights, words: Vocabulary, leanings: Mapping[str, float], misfit: float) -> None:
    """Add the embedding and the output layer."""
    by_data = {text.encode(): leaning for text, leaning in leanings.items()}
    first, last = [], []
    for token in words.tokens:
        own, noise = weights.numbers(WIDTH - NEEDS, 0.7), weights.numbers(WIDTH - NEEDS, SPREAD)
        first.append([NEED_SIZE * (need is token.after) for need in Need] + own)
        leaning = by_data.get(token.data, 0.0) + _validity(token)
        fits = [leaning + misfit * (not token.fits(need)) for need in Need]
        last.append(fits + [REPEAT * a + b for a, b in zip(own, noise, strict=True)])
    weights.add_rows("token_embd.weight", first)
    weights.add_same("output_norm.weight", WIDTH, 1.0)
    weights.add_rows("output.weight", last)


def _validity(token: Token) -> float:
    """Make bytes that are never valid in UTF-8 rare, and 0xE0 and 0xF1 upwards, which are valid before few bytes."""
    is_broken = len(token.data) == 1 and token.data[0] in {0xC0, 0xC1, 0xE0, *range(0xF1, 0x100)}
    return NEVER / 2 if is_broken else 0.0
