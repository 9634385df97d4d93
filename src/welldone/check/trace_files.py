"""Keeps the traces of a run: for each reply NAME.json and NAME.body, as `welldone lint` and `mock` read them."""

import json
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from welldone.check.reply import ProbeReply
from welldone.http.redaction import SecretRedactor

_TRACE_FILENAME = re.compile(r".+-\d+\.(?:json|body)")


def trace_filename(probe: str, reply: ProbeReply) -> str:
    """The file of a trace."""
    return f"{probe}-{reply.number}.json"


def is_recordable(reply: ProbeReply, secrets: SecretRedactor) -> bool:
    """Whether there is a trace of it: of none that says a secret."""
    return reply.is_judged and reply.status is not None and not secrets.occur_in(reply.recording.body)


def prepare_trace_folder(folder: Path, probes: Iterable[str]) -> None:
    """Make the folder, and take out of it what an earlier run has left of these probes.

    Raises:
        OSError: it cannot be written to.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = set(probes)
    for path in list(folder.iterdir()):
        if _TRACE_FILENAME.fullmatch(path.name) and path.name.rpartition("-")[0] in names:
            path.unlink()
    with tempfile.TemporaryFile(dir=folder):
        pass  # it can be


def write_traces(folder: Path, probe: str, replies: Iterable[ProbeReply], secrets: SecretRedactor) -> None:
    """Write the traces of one probe. One with a secret in its body is left out.

    Raises:
        OSError: the disk refused.
    """
    for reply in replies:
        if not is_recordable(reply, secrets):
            continue
        path = folder / trace_filename(probe, reply)
        body = path.with_suffix(".body")
        body.write_bytes(reply.recording.body)
        record = json.dumps(_trace_metadata(probe, reply, body.name), ensure_ascii=False, indent=1)
        path.write_bytes(secrets.redact_json(record.encode("utf-8", "replace")))


def _trace_metadata(probe: str, reply: ProbeReply, body: str) -> dict[str, object]:
    recording, asked = reply.recording, reply.request
    arrivals = recording.arrivals
    sizes = [count - before for (_, before), (_, count) in zip([(0.0, 0), *arrivals], arrivals, strict=False)]
    return {
        "server": "checked",
        "probe": probe,
        "endpoint": asked.path,
        "method": asked.method,
        "request": asked.json,
        "status": f"HTTP/1.1 {recording.status}",
        "headers": recording.headers,
        "head_s": recording.head_s,
        "http_chunk_sizes": recording.pieces,
        "pieces": [[seconds, size] for (seconds, _), size in zip(arrivals, sizes, strict=True)],
        "body": body,
        "body_complete": None if reply.is_partial else recording.is_complete,
        **({"error": recording.error or "nobody listened any more"} if reply.is_partial or recording.error else {}),
    }
