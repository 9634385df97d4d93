"""Where the text of a frame stands, in each dialect: templates of frames are learnt with it."""

import re

from welldone.protocol import sse
from welldone.protocol.dialects.base import Affixes
from welldone.protocol.envelope import Endpoint
from welldone.protocol.lenient_json import is_verbatim_text, parse_strict

_TEXT_FIELD = re.compile(rb'"(?:content|delta|text|thinking)": ?"((?:[^"\\]|\\.)*)"')
_LIMIT_BYTES = 4096
"""Longest frame from which a template is learnt, since each text in it is tried. Real chunks have 300 bytes."""
_MARK = "\x1atext\x1a"
_MARK_BYTES = b"\\u001atext\\u001a"


def split_around_text(frame: bytes, endpoint: Endpoint = Endpoint.CHAT) -> Affixes | None:
    """Return the bytes before and after the text of a frame of this dialect; None if it has no text to be copied."""
    is_chunk = endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS)
    if len(frame) > _LIMIT_BYTES or (is_chunk and not sse.is_single_frame(frame)):
        return None
    for found in _TEXT_FIELD.finditer(frame):
        before, after = frame[: found.start(1)], frame[found.end(1) :]
        if is_verbatim_text(found[1]):
            marked = parse_strict((before + _MARK_BYTES + after).partition(b"data:")[2])
            if _text_of(marked, endpoint) == _MARK:
                return before, after
    return None


def _text_of(value: object, endpoint: Endpoint) -> object:
    match endpoint, value:
        case (
            (Endpoint.CHAT, {"choices": [{"delta": {"content": text}}]})
            | (Endpoint.COMPLETIONS, {"choices": [{"text": text}]})
            | (Endpoint.RESPONSES, {"delta": text})
            | (Endpoint.MESSAGES, {"delta": {"type": "text_delta", "text": text}})
            | (Endpoint.MESSAGES, {"delta": {"type": "thinking_delta", "thinking": text}})
        ):
            return text
        case _:
            return None
