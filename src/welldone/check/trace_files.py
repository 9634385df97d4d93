"""Trace files of a run: NAME.json and NAME.body for each reply, as `welldone lint` and `welldone mock` read them."""

import json
import re
import tempfile
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from welldone.check.reply import ProbeReply
from welldone.http.redaction import SecretRedactor

_TRACE_FILENAME = re.compile(r".+-\d+\.(?:json|body)")


def trace_filename(probe: str, reply: ProbeReply) -> str:
    """Name of the JSON file of a trace."""
    return f"{probe}-{reply.number}.json"


def is_recordable(reply: ProbeReply, secrets: SecretRedactor) -> bool:
    """Whether a trace of the reply is written. A reply that contains a secret is not recorded."""
    return reply.is_judged and reply.status is not None and not secrets.occur_in(reply.recording.body)


def prepare_trace_folder(folder: Path, probes: Iterable[str]) -> None:
    """Create the folder, and delete the traces of these probes from earlier runs.

    Raises:
        OSError: the folder is not writable.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = set(probes)
    for path in list(folder.iterdir()):
        if _TRACE_FILENAME.fullmatch(path.name) and path.name.rpartition("-")[0] in names:
            path.unlink()
    with tempfile.TemporaryFile(dir=folder):
        pass  # only tests that the folder is writable


def write_traces(folder: Path, probe: str, replies: Iterable[ProbeReply], secrets: SecretRedactor) -> None:
    """Write the traces of one probe.

    Raises:
        OSError: a file cannot be written.
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
    recording, request = reply.recording, reply.request
    arrivals = pairwise([(0.0, 0), *recording.arrivals])
    return {
        "server": "checked",
        "probe": probe,
        "endpoint": request.path,
        "method": request.method,
        "request": request.json,
        "status": f"HTTP/1.1 {recording.status}",
        "headers": recording.headers,
        "head_s": recording.head_s,
        "http_chunk_sizes": recording.pieces,
        "pieces": [[seconds, count - before] for (_, before), (seconds, count) in arrivals],
        "body": body,
        "body_complete": None if reply.is_partial else recording.is_complete,
        **({"error": recording.error or "aborted by the client"} if reply.is_partial or recording.error else {}),
    }
