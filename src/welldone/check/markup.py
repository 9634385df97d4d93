"""Markup that belongs to a model and its server: who reads an answer should never see it."""

import re

SPECIAL_TOKENS = re.compile(
    r"<\|[a-z0-9_]{2,40}\|>"  # ChatML, Llama 3, Phi, GPT: <|im_end|>, <|eot_id|>, <|end|>, <|endoftext|>
    r"|<\uff5c[^<>\n]{2,40}\uff5c>"  # DeepSeek writes its bars wide
    r"|</?(?:start|end)_of_turn>|<(?:bos|eos|pad|unk)>"  # Gemma, and the tokenizers of SentencePiece
    r"|\[/?INST\]|<</?SYS>>"  # Llama 2, Mistral
    r"|\A\s*<s>|</s>\s*\Z"  # elsewhere they may be HTML
)
"""Special tokens only, and no words that a model may say."""


def find_special_token(text: str) -> re.Match[str] | None:
    """The first special token in a text; None where there is none."""
    return SPECIAL_TOKENS.search(text)
