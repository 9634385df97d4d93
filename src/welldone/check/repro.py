"""What reproduces a finding: commands of `welldone check` and curl, and trace files.

In commands, secrets are references to environment variables. A trace is NAME.json and NAME.body for each reply, as
`welldone lint` and `welldone mock` read them.
"""

import json
import re
import shlex
import tempfile
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from welldone.check.probe_client import root_of
from welldone.check.reply import ProbeReply, ProbeRequest
from welldone.check.settings import CHAT, CheckSettings
from welldone.http.redaction import API_KEY_VARIABLE, SecretRedactor

AUTHORIZATION = "Authorization"
_MAX_COMMAND_CHARS = 4000  # longer commands are impractical to paste


def repro_command(settings: CheckSettings, model: str, probe: str, rule: str) -> str:
    """`welldone check` with one probe and one rule, and the user's other options."""
    # The name of a model may begin with a hyphen.
    words = ["welldone", "check", settings.url, *(["--model", model] if model[:1] != "-" else [f"--model={model}"])]
    if settings.endpoint != CHAT.name:
        words += ["--endpoint", settings.endpoint]
    words += ["--only", probe, "--rule", rule, *_command_options(settings)]
    return shlex.join(words)


def _command_options(settings: CheckSettings) -> Iterator[str]:
    """Options that differ from the defaults."""
    default = CheckSettings(url=settings.url)
    if settings.key is not None:
        yield from ("--api-key", f"env:{_env_variable(settings, AUTHORIZATION)}")
    for name, _ in settings.headers:
        yield from ("--header", f"{name}: env:{_env_variable(settings, name)}")
    if settings.extra:
        yield from ("--extra", json.dumps(settings.extra, ensure_ascii=False, separators=(",", ":")))
    if settings.ca_file is not None:
        yield from ("--ca-file", settings.ca_file)
    if not settings.is_verified:
        yield "--insecure"
    if settings.timeouts.reply_s != default.timeouts.reply_s:
        yield from ("--timeout", f"{settings.timeouts.reply_s:g}")
    if settings.jobs != default.jobs:
        yield from ("--jobs", str(settings.jobs))
    if settings.is_strict:
        yield "--strict"


def repro_curl(settings: CheckSettings, request: ProbeRequest) -> str | None:
    """The request as a curl command whose output `welldone lint` reads; None where it is too long or not printable.

    `-i` and `--raw` keep the response head and the chunked framing. There is none for a WebSocket.
    """
    if request.is_socket:
        return None
    url = settings.url.rstrip("/")
    root = root_of(url) if request.is_root else url
    words = ["curl", "-siN", "--raw", root + request.path, "-m", f"{settings.timeouts.reply_s:g}"]
    if settings.ca_file is not None:
        words += ["--cacert", settings.ca_file]
    if not settings.is_verified:
        words.append("--insecure")
    if request.method != ("GET" if request.body is None else "POST"):
        words += ["-X", request.method]
    names = {name.lower() for name, _ in request.headers}
    if request.body is not None and "content-type" not in names:
        words += ["-H", "Content-Type: application/json"]
    dialect_headers = [(name, value) for name, value in settings.dialect.headers if name not in names]
    words += [
        word
        for name, value in (*dialect_headers, *request.headers)
        for word in ("-H", f"{name}:" if value is None else f"{name}: {value}")
    ]
    line = " ".join([shlex.join(words), *_secret_headers(settings, names)])
    if request.body is not None:
        try:
            line += f" -d {shlex.quote(request.body.decode())}"
        except UnicodeDecodeError:
            return None
    return settings.secrets.redact(line) if len(line) <= _MAX_COMMAND_CHARS and line.isprintable() else None


def _secret_headers(settings: CheckSettings, sent_headers: set[str]) -> Iterator[str]:
    """Header options whose values the shell expands from environment variables."""
    if settings.key is not None and AUTHORIZATION.lower() not in sent_headers:
        yield f'-H "Authorization: Bearer ${_env_variable(settings, AUTHORIZATION)}"'
    name = settings.dialect.key_header
    if settings.key is not None and name is not None and name not in sent_headers:
        yield f'-H "{name}: ${_env_variable(settings, AUTHORIZATION)}"'
    for name, _ in settings.headers:
        if name.lower() not in sent_headers:
            yield f'-H {shlex.quote(f"{name}: ")}"${_env_variable(settings, name)}"'


def _env_variable(settings: CheckSettings, header: str) -> str:
    """The environment variable of a header: the user's, or a suggested name."""
    default = API_KEY_VARIABLE if settings.key is not None and header == AUTHORIZATION else f"WELLDONE_{header.upper()}"
    return settings.env_variables.get(header) or re.sub(r"\W", "_", default, flags=re.ASCII)


# ---- trace files


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
