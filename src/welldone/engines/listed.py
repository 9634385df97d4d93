"""What an upstream lists as its models, without what is nobody's business: paths, addresses, command lines, keys."""

import re
from collections.abc import Collection, Generator
from typing import Any

import msgspec
from msgspec import UNSET

from welldone.wire.budget import run_to_completion, decode_in_steps

LISTED_MODELS_LIMIT = 5_000
"""OpenRouter lists some hundred."""

MODEL_ID_LIMIT = 128
"""Characters of an id; as for names of local models. Ids stand in logs and labels."""

_TEXT_LIMIT = 128  # what clients read is a word or a title; longer is prose
_ITEMS_PER_STEP = 64  # models that are cleaned in one turn
_ITEMS_LIMIT = 64  # of a list or a table; OpenRouter has two dozen
_DEPTH_LIMIT = 4  # OpenRouter has two
_MIN_SECRET_LENGTH = 8  # a shorter one, such as `none`, is a common word and no secret
_PRIVATE_FIELDS = {"args", "permission", "preset"}
"""Command lines and files of llama.cpp's router, and a relic of OpenAI's first API."""
_PATH_PATTERN = re.compile(r"(^|[^\w.])[/\\~]")  # an absolute path, or an address with its ://
_KIND_BY_OWNER = {
    "vllm": "vllm",
    "llamacpp": "llamacpp",
    "sglang": "sglang",
    "welldone": "welldone",
    "library": "ollama",
    "openai": "openai",
    "openai-internal": "openai",
    "system": "openai",
}
"""Servers by the owner that they give their models."""


class ListedModel(msgspec.Struct, frozen=True):
    """A model, and what else its server says of it."""

    id: str
    extra_fields: dict[str, Any] = msgspec.field(default_factory=dict)

    def as_model_object(self, name: str) -> dict[str, Any]:
        """The model as clients list it, under the name that they use."""
        created, owner = self.extra_fields.get("created"), self.extra_fields.get("owned_by")
        return {
            **self.extra_fields,
            "id": name,
            "object": "model",
            "created": created if isinstance(created, int) and not isinstance(created, bool) else 0,
            "owned_by": owner if isinstance(owner, str) else "upstream",
        }


def parse_model_list(body: bytes, secrets: Collection[str] = ()) -> tuple[ListedModel, ...] | None:
    """The models of a reply to `GET /v1/models`, each id once; None: it is no list. What is odd is left out."""
    return run_to_completion(parse_model_list_in_steps(body, secrets))


def parse_model_list_in_steps(
    body: bytes, secrets: Collection[str] = ()
) -> Generator[None, None, tuple[ListedModel, ...] | None]:
    """The same, in steps of which each takes a turn."""
    data = yield from _model_items(body)
    if data is None:
        return None
    secrets = [secret for secret in secrets if len(secret) >= _MIN_SECRET_LENGTH]
    models: dict[str, ListedModel] = {}
    for place, item in enumerate(data):
        if place % _ITEMS_PER_STEP == 0:
            yield
        name = _model_id(item) if isinstance(item, dict) else None
        if isinstance(name, str) and name not in models and _is_valid_model_id(name, secrets):
            models[name] = ListedModel(name, _without_private(item, secrets, _DEPTH_LIMIT))
            if len(models) == LISTED_MODELS_LIMIT:
                break
    return tuple(models.values())


def _model_items(body: bytes) -> Generator[None, None, list[Any] | None]:
    """The list in OpenAI's `data`, in `models` as Ollama and Gemini have it, or bare as Together has it."""
    try:
        found = yield from decode_in_steps(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if isinstance(found, dict):
        if "data" in found and found["data"] is None:  # Ollama without a model
            return []
        found = found.get("data", found.get("models"))
    return found if isinstance(found, list) else None


def _model_id(item: dict[str, Any]) -> object:
    return next((item[key] for key in ("id", "model", "name") if key in item), None)


def detect_server_kind(models: Collection[ListedModel]) -> str:
    """The kind of server that lists such models; empty: not known."""
    owners = (model.extra_fields.get("owned_by") for model in models)
    return next((_KIND_BY_OWNER[owner] for owner in owners if isinstance(owner, str) and owner in _KIND_BY_OWNER), "")


def _is_valid_model_id(name: str, secrets: Collection[str]) -> bool:
    return 0 < len(name) <= MODEL_ID_LIMIT and name.isprintable() and not _has_secret(name, secrets)


def _without_private(value: Any, secrets: Collection[str], depth: int) -> Any:  # noqa: ANN401 - JSON
    """The value without what is private in it; `UNSET`: all of it is."""
    if isinstance(value, str):
        return value if _is_public_text(value, secrets) else UNSET
    if not isinstance(value, dict | list):
        return value
    if not depth:
        return UNSET
    if isinstance(value, list):
        items = (_without_private(item, secrets, depth - 1) for item in value[:_ITEMS_LIMIT])
        return [item for item in items if item is not UNSET]
    keys = [key for key in value if key not in _PRIVATE_FIELDS and _is_public_text(key, secrets)][:_ITEMS_LIMIT]
    table = {key: _without_private(value[key], secrets, depth - 1) for key in keys}
    return {key: item for key, item in table.items() if item is not UNSET}


def _is_public_text(text: str, secrets: Collection[str]) -> bool:
    is_word = len(text) <= _TEXT_LIMIT and text.isprintable()
    return is_word and not _PATH_PATTERN.search(text) and not _has_secret(text, secrets)


def _has_secret(text: str, secrets: Collection[str]) -> bool:
    return any(secret in text for secret in secrets)
