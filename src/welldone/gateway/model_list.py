"""Model lists of upstreams. Clients receive them without private fields: paths, URLs, command lines, keys.

Separate from `upstream`, since `check` reads model lists without the packages of the server.
"""

import re
from collections.abc import Collection, Generator
from typing import Any

import msgspec
from msgspec import UNSET

from welldone.core.json_budget import decode_in_steps, run_to_completion

LISTED_MODELS_LIMIT = 5_000
"""Models read from one list; OpenRouter lists several hundred."""

MODEL_ID_LIMIT = 128
"""Characters of a model id, as for local models. Ids appear in logs and metric labels."""

_TEXT_LIMIT = 128  # characters; longer strings are descriptions
_ITEMS_PER_STEP = 64  # models sanitized per event loop turn
_ITEMS_LIMIT = 64  # of a nested list or object; OpenRouter's have about 25
_DEPTH_LIMIT = 4  # of nested values; OpenRouter's have 2
_MIN_SECRET_LENGTH = 8  # shorter keys, such as `none`, are common words
_PRIVATE_FIELDS = {"args", "permission", "preset"}
"""Command lines and files of llama.cpp's router; `permission` is a leftover of OpenAI's first API."""
_PATH_PATTERN = re.compile(r"(^|[^\w.])[/\\~]")  # an absolute path, or a URL with its ://
_KIND_BY_OWNER = {
    **{name: name for name in ("vllm", "llamacpp", "sglang", "welldone", "openai")},
    "library": "ollama",
    "openai-internal": "openai",
    "system": "openai",
}
"""Server kind by the `owned_by` of its models."""


class ListedModel(msgspec.Struct, frozen=True):
    """A model in an upstream's list."""

    id: str
    extra_fields: dict[str, Any] = msgspec.field(default_factory=dict)

    def as_model_object(self, name: str) -> dict[str, Any]:
        """The model object for `GET /v1/models`, under the name that clients use."""
        created, owner = self.extra_fields.get("created"), self.extra_fields.get("owned_by")
        return {
            **self.extra_fields,
            "id": name,
            "object": "model",
            "created": created if isinstance(created, int) and not isinstance(created, bool) else 0,
            "owned_by": owner if isinstance(owner, str) else "upstream",
        }


def parse_model_list(body: bytes, secrets: Collection[str] = ()) -> tuple[ListedModel, ...] | None:
    """Parse a reply to `GET /v1/models`. Skips invalid and duplicate items; None if the body is not a model list."""
    return run_to_completion(parse_model_list_in_steps(body, secrets))


def parse_model_list_in_steps(
    body: bytes, secrets: Collection[str] = ()
) -> Generator[None, None, tuple[ListedModel, ...] | None]:
    """`parse_model_list` as a generator that yields where the event loop may run other tasks."""
    data = yield from _model_items(body)
    if data is None:
        return None
    secrets = [secret for secret in secrets if len(secret) >= _MIN_SECRET_LENGTH]
    models: dict[str, ListedModel] = {}
    for position, item in enumerate(data):
        if position % _ITEMS_PER_STEP == 0:
            yield
        if not isinstance(item, dict):
            continue
        model_id = next((item[key] for key in ("id", "model", "name") if key in item), None)
        if isinstance(model_id, str) and "supportedGenerationMethods" in item:
            model_id = model_id.removeprefix("models/")  # of Google's API, whose clients name models without it
        if isinstance(model_id, str) and model_id not in models and _is_valid_model_id(model_id, secrets):
            models[model_id] = ListedModel(model_id, _without_private(item, secrets, _DEPTH_LIMIT))
            if len(models) == LISTED_MODELS_LIMIT:
                break
    return tuple(models.values())


def _model_items(body: bytes) -> Generator[None, None, list[Any] | None]:
    """The items of `data` (OpenAI), of `models` (Ollama, Gemini), or of a bare list (Together)."""
    try:
        reply = yield from decode_in_steps(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if isinstance(reply, dict):
        if "data" in reply and reply["data"] is None:  # Ollama without a model
            return []
        reply = reply.get("data", reply.get("models"))
    return reply if isinstance(reply, list) else None


def detect_server_kind(models: Collection[ListedModel]) -> str:
    """The kind of server by the owners of its models; empty if unknown."""
    owners = (model.extra_fields.get("owned_by") for model in models)
    return next((_KIND_BY_OWNER[owner] for owner in owners if isinstance(owner, str) and owner in _KIND_BY_OWNER), "")


def _is_valid_model_id(name: str, secrets: Collection[str]) -> bool:
    return 0 < len(name) <= MODEL_ID_LIMIT and name.isprintable() and not _has_secret(name, secrets)


def _without_private(value: Any, secrets: Collection[str], depth: int) -> Any:  # noqa: ANN401 - JSON
    """The value without private parts; `UNSET` if nothing is left."""
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
    is_short = len(text) <= _TEXT_LIMIT and text.isprintable()
    return is_short and not _PATH_PATTERN.search(text) and not _has_secret(text, secrets)


def _has_secret(text: str, secrets: Collection[str]) -> bool:
    return any(secret in text for secret in secrets)
