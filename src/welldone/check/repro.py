"""Commands that reproduce a finding: `welldone check` and curl. Secrets are references to environment variables."""

import json
import re
import shlex
from collections.abc import Iterator

from welldone.check.probe_client import root_of
from welldone.check.reply import ProbeRequest
from welldone.check.settings import CHAT, CheckSettings
from welldone.http.redaction import API_KEY_VARIABLE

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
