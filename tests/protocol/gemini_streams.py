"""Streams of the Gemini API, as Google sends them."""

import json
from typing import Any

Json = dict[str, Any]

MEMBERS: Json = {"modelVersion": "gemini-up", "responseId": "r1"}


def candidate(*parts: Json, index: int = 0, **members: Any) -> Json:  # noqa: ANN401 - JSON
    """Return a candidate with the next parts."""
    return {"content": {"parts": list(parts), "role": "model"}, **members, "index": index}


def element(*candidates: Json, **members: Any) -> Json:  # noqa: ANN401 - JSON
    """Return an element of a stream."""
    return {"candidates": list(candidates), **members, **MEMBERS}


def counts(prompt: int, answer: int | None = None, **more: Any) -> Json:  # noqa: ANN401 - JSON
    """Return the usage of an element."""
    given = {} if answer is None else {"candidatesTokenCount": answer}
    total = prompt + (answer or 0) + more.get("thoughtsTokenCount", 0)
    return {"promptTokenCount": prompt, **given, "totalTokenCount": total, **more}


def frames(*elements: object) -> bytes:
    """Return elements as a stream."""
    return b"".join(b"data: " + json.dumps(one).encode() + b"\r\n\r\n" for one in elements)


THOUGHT: Json = {"text": "hm", "thought": True}
TEXT: Json = {"text": "Hello"}
CALL: Json = {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "c2ln"}
SEALED: Json = {"text": "", "thoughtSignature": "ZW5k"}
ANSWER = (
    element(candidate(THOUGHT), usageMetadata=counts(3)),
    element(candidate({"text": "Hel"}), usageMetadata=counts(3, 1, thoughtsTokenCount=2)),
    element(candidate({"text": "lo"}), usageMetadata=counts(3, 2, thoughtsTokenCount=2)),
    element(candidate(SEALED, finishReason="STOP"), usageMetadata=counts(3, 2, thoughtsTokenCount=2)),
)
"""Reasoning, text, a signature and usage."""
WHOLE = element(candidate(THOUGHT, TEXT, SEALED, finishReason="STOP"), usageMetadata=counts(3, 2, thoughtsTokenCount=2))
"""The same answer as one reply."""
ERROR: Json = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
