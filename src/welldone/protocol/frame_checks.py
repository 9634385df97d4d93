"""Checks of the lines of an SSE frame, and recovery of data from malformed lines."""

import re

from welldone.protocol import sse
from welldone.protocol.lenient_json import parse_strict
from welldone.protocol.repair_log import RepairLog

_LINE_BREAKS = (b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85")
_NAME_BYTES = 16  # more than the longest known field name
_EXCERPT_BYTES = 1024
_REPLACEMENT = "\ufffd".encode()
_FIELDS = frozenset({b"data", b"event", b"id", b"retry", b"error", b""})
_RULES = {b"data": "sse-data-space", b"event": "sse-no-event-name", b"id": "sse-no-id-field"}
_FIELD_RULES = _RULES | {b"retry": "sse-no-retry-frame"}
_REPEATED_PREFIX = re.compile(rb"\A(?:data: ?)+(?=[\[{])")  # of a server that frames what is framed already


def check_lines(repair_log: RepairLog, raw: bytes, lines: list[bytes], *, data_lines: int = 0) -> None:
    """Record the violations in the lines of a frame, of which `data_lines` data lines were read before."""
    repair_log.record_if(b"\r" in raw, "sse-lf-only")
    for line in lines:
        name, _, _ = line[:_NAME_BYTES].partition(b":")
        rule = _FIELD_RULES.get(name)
        if name not in _FIELDS:  # `data:` is missing, or the line continues the JSON of the line before
            rule = "sse-data-space" if line.startswith((b"{", b"[")) else "sse-json-on-one-line"
        elif name == b"data":
            data_lines += 1
            # Continued JSON may start with white space.
            is_spaced = line.startswith(sse.DATA_PREFIX) and (data_lines > 1 or not line.startswith(b"data:  "))
            is_right = is_spaced and not _REPEATED_PREFIX.match(line[len(sse.DATA_PREFIX) :])
            rule = None if is_right or line == b"data:" else rule
        if rule is not None:
            repair_log.record(rule, line[:_EXCERPT_BYTES].decode("utf-8", "replace"))
    repair_log.record_if(data_lines > 1, "sse-json-on-one-line")


def check_characters(repair_log: RepairLog, data: bytes) -> None:
    """Record line separators and replacement characters in `data`."""
    if any(character in data for character in _LINE_BREAKS):
        repair_log.record("enc-escape-line-breaks", data.decode("utf-8", "replace"))
    if _REPLACEMENT in data:
        repair_log.record("enc-no-replacement-char", data.decode("utf-8", "replace"))


def recover_data(lines: list[bytes], fields: list[tuple[bytes, bytes]]) -> bytes:
    """Return the data of a frame, including lines that lack `data:`, without the lines of other fields."""
    recovered = []
    for line, (name, value) in zip(lines, fields, strict=True):
        if name == b"data":
            recovered.append(_REPEATED_PREFIX.sub(b"", value))
        elif name not in _FIELDS:
            recovered.append(line)
    return b"\n".join(recovered)


def has_hidden_chunk(fields: list[tuple[bytes, bytes]]) -> bool:
    """Whether a comment or an unknown field contains a chunk, which shows that the bytes before it are corrupt.

    A line with a quote before the colon is continued JSON, not a field.
    """
    hidden = [value for name, value in fields if name != b"data" and b'"choices"' in value and b'"' not in name]
    return any(isinstance(found := parse_strict(value), dict) and "choices" in found for value in hidden)
