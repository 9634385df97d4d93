"""Log probabilities, made up but well formed: in chat's shape, and in the older one of completions."""

from welldone.wire.events import Json

_ALTERNATIVES = tuple("abcdefghijklmnopqrstuvwxyz")


def chat_logprobs(token: str, top_count: int) -> Json:
    """Of one token: itself and, where asked for, what might have stood in its place."""
    likeliest = [_entry(word, value) for word, value in _top_logprobs(token, top_count)]
    return {"content": [_entry(token, _logprob(token)) | {"top_logprobs": likeliest}], "refusal": None}


def completion_logprobs(token: str, offset: int, top_count: int, *, is_first: bool) -> Json:
    """Of one token that begins at a place of the text. Before the very first there is nothing to expect it from."""
    likeliest = None if is_first else dict(_top_logprobs(token, max(top_count, 1)))
    value = None if is_first else _logprob(token)
    return {"tokens": [token], "token_logprobs": [value], "top_logprobs": [likeliest], "text_offset": [offset]}


def _logprob(token: str) -> float:
    return -0.01 * (1 + len(token))


def _top_logprobs(token: str, top_count: int) -> list[tuple[str, float]]:
    others = [word for word in _ALTERNATIVES if word != token][: max(0, top_count - 1)]
    return [(token, _logprob(token)), *((word, -3.0 - place) for place, word in enumerate(others))][:top_count]


def _entry(token: str, value: float) -> Json:
    return {"token": token, "logprob": value, "bytes": list(token.encode())}
