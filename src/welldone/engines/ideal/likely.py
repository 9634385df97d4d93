"""Log probabilities, made up but well formed: in chat's shape, and in the older one of completions."""

from welldone.wire.events import Json

_OTHERS = tuple("abcdefghijklmnopqrstuvwxyz")


def chat_logprobs(token: str, tops: int) -> Json:
    """Of one token: itself and, where asked for, what might have stood in its place."""
    likeliest = [_entry(word, value) for word, value in _likely(token, tops)]
    return {"content": [_entry(token, _first(token)) | {"top_logprobs": likeliest}], "refusal": None}


def completion_logprobs(token: str, offset: int, tops: int, *, is_first: bool) -> Json:
    """Of one token that begins at a place of the text. Before the very first there is nothing to expect it from."""
    likeliest = None if is_first else dict(_likely(token, max(tops, 1)))
    value = None if is_first else _first(token)
    return {"tokens": [token], "token_logprobs": [value], "top_logprobs": [likeliest], "text_offset": [offset]}


def _first(token: str) -> float:
    return -0.01 * (1 + len(token))


def _likely(token: str, tops: int) -> list[tuple[str, float]]:
    others = [word for word in _OTHERS if word != token][: max(0, tops - 1)]
    return [(token, _first(token)), *((word, -3.0 - place) for place, word in enumerate(others))][:tops]


def _entry(token: str, value: float) -> Json:
    return {"token": token, "logprob": value, "bytes": list(token.encode())}
