"""Abusive requests are rejected, or made harmless, before they reach an engine."""

import pytest

from tests.server.abuse import BODY_LIMIT_BYTES, CHAT, TEXT, Abuse, abuses
from tests.server.requests.builders import CAPABILITIES, MODEL
from tests.table import table
from welldone.gateway.errors import ApiError
from welldone.server.api.embeddings import read_detokenize, read_embeddings, read_rerank, read_tokenize
from welldone.server.requests.chat import read_chat, read_completions
from welldone.server.requests.fields import read_body

READERS = {
    CHAT: read_chat,
    TEXT: read_completions,
    "/detokenize": read_detokenize,
    "/tokenize": read_tokenize,
    "/v1/embeddings": read_embeddings,
    "/v1/rerank": read_rerank,
}
CHECKED_BY_ROUTES = {"a path for a model": "names are looked up by the routes"}


def validation_error(abuse: Abuse) -> ApiError | None:
    """Return the validation error; None if the request is accepted."""
    try:
        READERS[abuse.path](read_body(abuse.body, abuse.headers["Content-Type"]), MODEL, CAPABILITIES)
    except ApiError as error:
        return error
    return None


@pytest.mark.tier3
def test_there_are_more_than_sixty_abusive_requests_with_unique_names() -> None:
    assert len({abuse.name for abuse in abuses()}) == len(abuses()) > 60


@table("abuse", abuses, ids=lambda abuse: abuse.name)
def test_an_abusive_request_is_rejected_or_made_harmless(abuse: Abuse) -> None:
    if len(abuse.body) > BODY_LIMIT_BYTES:
        assert abuse.statuses == {413}  # by the HTTP server, which counts bytes
        return
    error = validation_error(abuse)
    if error is None:
        assert 200 in abuse.statuses or abuse.name in CHECKED_BY_ROUTES
        return
    assert error.status in abuse.statuses
    assert len(error.message) < 400
