"""Speculative decoding: a small draft model, or a search in the text so far, proposes tokens that the model verifies.

llama.cpp serves a model without it if the draft model does not fit. Here that is an error as far as the files show it,
and else a warning.
"""

import dataclasses
import re
from itertools import count, islice
from pathlib import Path

from welldone.config.model import ModelSettings
from welldone.engines.errors import EngineError
from welldone.engines.models.gguf import GgufError, read_metadata, read_values
from welldone.engines.models.store import resolve_model_file

DRAFT_MODEL_TYPES = ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark")
"""Types that need a draft model. `draft-mtp` also works with layers of the model itself."""

VOCABULARY_SIZE_DIFFERENCE = 128
FIRST_COMPARED_TOKEN = 5
"""SPEC_VOCAB_MAX_SIZE_DIFFERENCE and SPEC_VOCAB_CHECK_START_TOKEN_ID of llama.cpp's common/speculative.cpp: the first
tokens are special ones."""

_TOKENS = "tokenizer.ggml.tokens"
_OFF_LINE = re.compile(
    "failed to initialize speculative decoding context: (.+)|speculative decoding not supported by this context"
)
_SHOWN_CHARS = 20


def with_speculation(settings: ModelSettings, file: Path | None, models_folder: Path) -> ModelSettings:
    """Return the settings with the draft model's file and the types of speculation, checked. Raises `EngineError`.

    `file` is the model's; None if it is not downloaded yet.
    """
    types = tuple(name for name in settings.spec_type if name != "none")
    if settings.draft_model is None:
        if missing := [name for name in types if name in DRAFT_MODEL_TYPES]:
            raise EngineError(f"its spec_type {missing[0]} needs a draft model (--model-draft)", is_permanent=True)
        return dataclasses.replace(settings, spec_type=types)
    types = types or DRAFT_MODEL_TYPES[:1]
    if not any(name.startswith("draft-") for name in types):
        text = f"its spec_type {','.join(types)} does not use the draft model; add draft-simple, or leave one out"
        raise EngineError(text, is_permanent=True)
    draft = resolve_model_file(models_folder, settings.draft_model)
    if draft is None:
        raise EngineError(f"there is no draft model {settings.draft_model.name} (--model-draft)", is_permanent=True)
    try:
        read_metadata(draft)
        if file is not None and DRAFT_MODEL_TYPES[0] in types and not draft.samefile(file):
            _check_vocabulary(file, draft)
    except (GgufError, OSError) as error:
        raise EngineError(f"its draft model {draft.name} {error}", is_permanent=True) from error
    return dataclasses.replace(settings, draft_model=draft, spec_type=types)


def _check_vocabulary(file: Path, draft: Path) -> None:
    """Compare tokens as llama.cpp does. A file without tokens is left to llama.cpp."""
    own, draft_tokens = (read_values(path, _TOKENS).get(_TOKENS) for path in (file, draft))
    if not isinstance(own, list) or not isinstance(draft_tokens, list):
        return
    pairs = islice(zip(count(), own, draft_tokens, strict=False), FIRST_COMPARED_TOKEN, None)
    if abs(len(own) - len(draft_tokens)) > VOCABULARY_SIZE_DIFFERENCE:
        difference = f"{len(draft_tokens):,} tokens instead of {len(own):,}"
    elif (mismatch := next(((at, a, b) for at, a, b in pairs if a != b), None)) is not None:
        at, expected, actual = mismatch
        difference = f"token {at} is {str(actual)[:_SHOWN_CHARS]!r} instead of {str(expected)[:_SHOWN_CHARS]!r}"
    else:
        return
    raise EngineError(
        f"its draft model {draft.name} has another vocabulary: {difference}; take a smaller model of the same family, "
        "or --spec-type ngram-simple without a draft model",
        is_permanent=True,
    )


def speculation_warning(line: str) -> str | None:
    """Return the warning if this line of llama.cpp's log says that it does not use speculative decoding."""
    match = _OFF_LINE.search(line)
    if match is None:
        return None
    return f"the engine serves this model without speculative decoding: {match[1] or 'its context does not allow it'}"
