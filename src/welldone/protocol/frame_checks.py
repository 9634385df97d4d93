"""The lines of a frame: what is wrong with them, and what they say all the same."""

from welldone.protocol import catalog, sse
from welldone.protocol.lenient_json import parse_strict
from welldone.protocol.repair_log import RepairLog

_LINE_BREAKS = (b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85")
_NAME_BYTES = 16  # more than the longest name of a field that we know
_EXCERPT_BYTES = 1024
_REPLACEMENT = "\ufffd".encode()
_FIELDS = frozenset({b"data", b"event", b"id", b"retry", b"error", b""})
_FIELD_RULES = {
    b"data": catalog.sse.DATA_SPACE,
    b"event": catalog.sse.NO_EVENT_NAME,
    b"id": catalog.sse.NO_ID_FIELD,
    b"retry": catalog.sse.NO_RETRY_FRAME,
}


def check_lines(repair_log: RepairLog, raw: bytes, lines: list[bytes], *, data_lines: int = 0) -> None:
    """Note what is wrong with the lines of a frame, after so many of its data."""
    if b"\r" in raw:
        repair_log.record(catalog.sse.LF_ONLY)
    for line in lines:
        name, _, _ = line[:_NAME_BYTES].partition(b":")
        fault = _FIELD_RULES.get(name) if name in _FIELDS else _stray_line_rule(line)
        if name == b"data":
            data_lines += 1
            # JSON that goes on may well begin with white space.
            is_spaced = line.startswith(sse.DATA_PREFIX) and (data_lines > 1 or not line.startswith(b"data:  "))
            fault = None if is_spaced or line == b"data:" else fault
        if fault is not None:
            repair_log.record(fault, line[:_EXCERPT_BYTES].decode("utf-8", "replace"))
    if data_lines > 1:
        repair_log.record(catalog.sse.JSON_ON_ONE_LINE)


def check_characters(repair_log: RepairLog, data: bytes) -> None:
    """Note characters that break lines, or that stand for others that were lost."""
    if any(character in data for character in _LINE_BREAKS):
        repair_log.record(catalog.enc.ESCAPE_LINE_BREAKS, data.decode("utf-8", "replace"))
    if _REPLACEMENT in data:
        repair_log.record(catalog.enc.NO_REPLACEMENT_CHAR, data.decode("utf-8", "replace"))


def recover_data(lines: list[bytes], fields: list[tuple[bytes, bytes]]) -> bytes:
    """What a frame says, with the lines that lack `data:`; the lines of other fields are left out."""
    said = []
    for line, (name, value) in zip(lines, fields, strict=True):
        if name == b"data":
            said.append(value)
        elif name not in _FIELDS:
            said.append(line)
    return b"\n".join(said)


def has_hidden_chunk(fields: list[tuple[bytes, bytes]]) -> bool:
    """Whether a chunk stands in a comment, or in a field that nobody knows: what was before it is lost or garbled.

    Where a quote stands before the colon, it is no field, but JSON that goes on.
    """
    hidden = [value for name, value in fields if name != b"data" and b'"choices"' in value and b'"' not in name]
    return any(isinstance(found := parse_strict(value), dict) and "choices" in found for value in hidden)


def _stray_line_rule(line: bytes) -> catalog.Rule:
    """What is wrong with a line that has no field name we know: its `data:` is missing, or it goes on from before."""
    return catalog.sse.DATA_SPACE if line.startswith((b"{", b"[")) else catalog.sse.JSON_ON_ONE_LINE
