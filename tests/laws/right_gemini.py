"""Generator of legal streams and replies of the Gemini API, and strategies for damaged ones."""

import copy
import json
from random import Random

from hypothesis import strategies as st

from tests.laws.right_chunks import ALL, arguments, cut, texts
from tests.laws.right_events import DrawnEvents, Json
from tests.protocol.gemini_streams import ANSWER, CALL, ERROR, WHOLE, candidate, counts, element, frames


def gemini(draw: Random) -> DrawnEvents:
    """Draw a legal answer: thoughts, text, signatures and calls with ids, then its elements."""
    parts: list[Json] = []
    if draw.random() < 0.4:
        parts.append({"text": texts(draw, ALL).full or "hm", "thought": True})
    if draw.random() < 0.8:
        parts.append({"text": texts(draw, ALL).full or "Hello"})
    if draw.random() < 0.3:
        parts.append({"text": "", "thoughtSignature": "c2ln"})
    for number in range(draw.choice([0, 0, 0, 1, 2])):
        args = json.loads(arguments(draw))
        signed = {"thoughtSignature": ("YQ==", "Yg==")[number]} if draw.random() < 0.5 else {}
        parts.append({"functionCall": {"id": f"id{number}", "name": "f", "args": args}, **signed})
    reason = draw.choice(["STOP", "STOP", "MAX_TOKENS", "SAFETY"])
    usage = counts(draw.randrange(1, 99), draw.randrange(99), **draw.choice([{}, {"thoughtsTokenCount": 5}]))
    reply = element(candidate(*parts, finishReason=reason), usageMetadata=usage)
    elements: list[Json] = []
    for part in parts:
        pieces = [part | {"text": one} for one in cut(draw, part["text"])] if part.get("text") else [part]
        elements += [element(candidate(one)) for one in pieces]
    if elements and draw.random() < 0.5:
        elements[-1]["candidates"][0]["finishReason"] = reason
        elements[-1]["usageMetadata"] = usage
    else:
        elements.append(element(candidate({"text": ""}, finishReason=reason), usageMetadata=usage))
    return DrawnEvents({}, copy.deepcopy(reply), elements, frames(*elements))


_REPLACEMENTS = [
    (b'"candidates"', b'"choices"'),
    (b'"candidates": [', b'"candidates": null, "x": ['),
    (b'"content"', b'"message"'),
    (b'"parts": [', b'"parts": [5, '),
    (b'"parts": [', b'"parts": 5, "x": ['),
    (b'"text": "', b'"text": 5, "x": "'),
    (b'"text": "', b'"text": "\\ud83d'),
    (b'"text": "', b'"text": "\xf0\x9f'),
    (b'"functionCall": {', b'"functionCall": null, "x": {'),
    (b'"name": "f"', b'"name": ""'),
    (b'"args": {', b'"args": 5, "x": {'),
    (b'"STOP"', b'"OTHER"'),
    (b'"STOP"', b"null"),
    (b'"STOP"', b'"BLOCKLIST"'),
    (b'"index": 0', b'"index": 1'),
    (b'"index": 0', b'"index": 999'),
    (b'"index": 0', b'"index": "0"'),
    (b'"promptTokenCount": 3', b'"promptTokenCount": -1'),
    (b"\r\n\r\n", b"\n\n"),
    (b"\r\n\r\n", b"\n"),
    (b"\r\n\r\n", b"\n\n: ping\n\n"),
    (b"data: ", b"data:"),
    (b"data: {", b"{"),
    (b"true", b"True"),
    (b"}", b"}}"),
]
_FRAMES = [
    *(frames(one) for one in ANSWER),
    frames(WHOLE),
    frames(element(candidate(CALL))),
    frames(element(candidate({"functionCall": {"name": "g", "args": None}}, {"text": "x"}, index=1))),
    frames(element(candidate(finishReason="STOP"))),
    frames(element({"finishReason": "STOP", "index": 1})),
    frames({"promptFeedback": {"blockReason": "SAFETY"}}),
    frames({"usageMetadata": counts(3)}),
    frames(ERROR),
    frames({"choices": []}),
    b"data: [DONE]\n\n",
    b": ping\n\n",
    b"\n\n",
]


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    body = b"".join(draw(st.lists(st.sampled_from(_FRAMES), max_size=4)))
    for old, new in draw(st.lists(st.sampled_from(_REPLACEMENTS), max_size=4)):
        body = body.replace(old, new, draw(st.sampled_from([1, 2, -1])))
    for _ in range(draw(st.integers(0, 2))):
        position = draw(st.integers(0, len(body)))
        body = body[:position] + draw(st.binary(max_size=2)) + body[position + draw(st.integers(0, 2)) :]
    return body


_pieces = st.sampled_from([*(old for old, _ in _REPLACEMENTS), *(new for _, new in _REPLACEMENTS), *_FRAMES])
any_bytes: st.SearchStrategy[bytes] = st.one_of(
    st.binary(max_size=60),
    st.lists(st.one_of(_pieces, st.binary(max_size=3)), max_size=20).map(b"".join),
    st.lists(st.sampled_from(_FRAMES), max_size=20).map(b"".join),
    _damaged(),
)
"""Streams of this API and what is left of them, and other bytes."""
