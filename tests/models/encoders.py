"""Tiny BERT models of random weights: one for embeddings, one for reranking.

Texts that share words have nearer vectors than texts that do not.
"""

import string

from tests.models.gguf_writer import Array, Gguf, Kind, Value
from tests.models.weights import Weights

SEED = 19540607
CONTEXT = 512
WIDTH = 32
LAYERS = 2
HEADS = 4
HIDDEN = 64  # of the feed-forward part: twice the width

MEAN, RANK = 1, 4  # pooling types of llama.cpp

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNKNOWN, BEGIN, SEPARATE, MASK = range(len(SPECIALS))
WORDS = (
    *("the", "a", "cat", "dog", "sits", "sat", "on", "mat", "in", "sun"),
    *("stock", "market", "fell", "rose", "today", "hello", "world", "what", "is", "query"),
)
LETTERS = string.ascii_lowercase + string.digits + string.punctuation


def embedding_model() -> Gguf:
    """Return an embedding model with mean pooling."""
    weights = Weights(SEED)
    _add_body(weights)
    return Gguf(_metadata("tiny-embedding", MEAN), weights.tensors)


def rerank_model() -> Gguf:
    """Return a reranking model."""
    weights = Weights(SEED)
    _add_body(weights)
    weights.add_linear("cls", WIDTH, WIDTH)
    weights.add_linear("cls.output", WIDTH, 1)
    metadata = _metadata("tiny-rerank", RANK)
    metadata["bert.classifier.output_labels"] = Array(Kind.STRING, ["LABEL_0"])
    return Gguf(metadata, weights.tensors)


def _metadata(name: str, pooling: int) -> dict[str, Value]:
    tokens = _tokens()
    marks = [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS))  # control tokens and normal ones
    return {
        "general.architecture": "bert",
        "general.name": name,
        "general.file_type": 0,  # F32
        "bert.vocab_size": len(tokens),
        "bert.context_length": CONTEXT,
        "bert.embedding_length": WIDTH,
        "bert.block_count": LAYERS,
        "bert.feed_forward_length": HIDDEN,
        "bert.attention.head_count": HEADS,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False,
        "bert.pooling_type": pooling,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "jina-v2-en",
        "tokenizer.ggml.tokens": Array(Kind.STRING, tokens),
        "tokenizer.ggml.token_type": Array(Kind.INT32, marks),
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.padding_token_id": PAD,
        "tokenizer.ggml.unknown_token_id": UNKNOWN,
        "tokenizer.ggml.cls_token_id": BEGIN,
        "tokenizer.ggml.bos_token_id": BEGIN,
        "tokenizer.ggml.eos_token_id": SEPARATE,
        "tokenizer.ggml.seperator_token_id": SEPARATE,  # sic, as in llama.cpp
        "tokenizer.ggml.mask_token_id": MASK,
    }


def _tokens() -> list[str]:
    """Return words and initial letters (prefixed with U+2581, as in llama.cpp), and letters within words."""
    begins = [f"\N{LOWER ONE EIGHTH BLOCK}{piece}" for piece in dict.fromkeys((*WORDS, *LETTERS))]
    return [*SPECIALS, *begins, *LETTERS]


def _add_body(weights: Weights) -> None:
    weights.add_rows("token_embd.weight", weights.rows(len(_tokens()), WIDTH, 1.0))
    weights.add_rows("token_types.weight", weights.rows(2, WIDTH, 0.1))
    weights.add_rows("position_embd.weight", weights.rows(CONTEXT, WIDTH, 0.1))
    weights.add_norm("token_embd_norm", WIDTH)
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights.add_linear(f"{at}.{part}", WIDTH, WIDTH)
        weights.add_norm(f"{at}.attn_output_norm", WIDTH)
        weights.add_linear(f"{at}.ffn_up", WIDTH, HIDDEN)
        weights.add_linear(f"{at}.ffn_down", HIDDEN, WIDTH)
        weights.add_norm(f"{at}.layer_output_norm", WIDTH)
