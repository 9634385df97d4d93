"""Translation of chat and completions requests for upstreams with other dialects."""

from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from welldone.core.collect import REASONING_DETAILS
from welldone.core.envelope import Endpoint
from welldone.core.events import Json
from welldone.server.requests import chat_input, chat_to_gemini, chat_to_messages, chat_to_responses, fields
from welldone.server.requests.fields import ValidatedRequest


class UpstreamDialect(NamedTuple):
    """How a chat request is sent to an upstream with another dialect."""

    translate: Callable[[Json], Json]
    """Raises ApiError for a field without an equivalent."""
    ignored_fields: tuple[str, ...]
    """Fields of chat that are left out."""
    has_stop: Callable[[str], bool]
    """Whether the upstream can match a stop string; otherwise it is matched here."""
    ignored_members: tuple[str, ...] = ("name", "reasoning", "reasoning_content")
    """Members of messages that are left out."""


UPSTREAM_DIALECTS = {
    Endpoint.MESSAGES: UpstreamDialect(
        chat_to_messages.chat_to_messages, chat_to_messages.IGNORED_FIELDS, lambda stop: bool(stop.strip())
    ),
    Endpoint.RESPONSES: UpstreamDialect(
        chat_to_responses.chat_to_responses, chat_to_responses.IGNORED_FIELDS, lambda _: False
    ),
    Endpoint.GEMINI: UpstreamDialect(
        chat_to_gemini.chat_to_gemini, chat_to_gemini.IGNORED_FIELDS, lambda _: True, ("name",)
    ),
}
"""By dialect of the upstream. `dialects.registry` has all that does not depend on a request."""

_COMPLETIONS_ONLY = {
    "echo": "it cannot repeat the prompt.",
    "logprobs": "it has no log probabilities of this form.",
    "prompt_embeds": "it has no embeddings.",
    "suffix": "it cannot insert text.",
}


def translate_request(body: Json, dialect: Endpoint, endpoint: Endpoint) -> Json:
    """Translate a validated body for one choice of `endpoint`, chat or completions.

    Raises:
        ApiError: a field is invalid, or has no equivalent.
    """
    chat = body if endpoint.is_chat else _completions_to_chat(body)
    return UPSTREAM_DIALECTS[dialect].translate(chat)


def _completions_to_chat(body: Json) -> Json:
    """Send the prompt as a message of the user: these APIs have no other text."""
    prompt = body.get("prompt")
    others = chat_input.forwarded_fields(body, ("prompt",), _COMPLETIONS_ONLY, "Messages, Responses or Gemini")
    if not isinstance(prompt, str):
        raise fields.unsupported("prompt", "must be text: the upstream has no completions, and reads no token ids.")
    return {**others, "messages": [{"role": "user", "content": prompt}]}


def check_translations(request: ValidatedRequest, dialects: Collection[Endpoint], endpoint: Endpoint) -> None:
    """Check that a request can be translated to these dialects, and prepare what they cannot do.

    Raises:
        ApiError: it cannot.
    """
    for dialect in dialects:
        for body in request.bodies:
            translate_request(body, dialect, endpoint)
    body = request.bodies[0]
    used = [UPSTREAM_DIALECTS[dialect] for dialect in dialects]
    ignored = {name for target in used for name in target.ignored_fields if body.get(name) is not None}
    members = {name for target in used for name in target.ignored_members}
    for message in body.get("messages", ()):
        if message["role"] not in ("tool", "function") and not message.get(REASONING_DETAILS):
            ignored |= {f"messages.{name}" for name in members if message.get(name)}
    request.ignored_fields = tuple(sorted(ignored))
    stops = chat_input.stop_strings(body)
    if not all(target.has_stop(stop) for target in used for stop in stops):
        request.facts = msgspec.structs.replace(request.facts, stop_strings=stops)
