"""How to see a finding again: the command, and the request by hand. Of secrets they say only where they are found."""

import json
import re
import shlex
from collections.abc import Iterator

from welldone.check.reply import ProbeRequest
from welldone.check.settings import CHAT, CheckSettings
from welldone.http.redaction import API_KEY_VARIABLE

AUTHORIZATION = "Authorization"
_MAX_COMMAND_CHARS = 4000  # characters that people still paste into a terminal


def repro_command(settings: CheckSettings, model: str, probe: str, rule: str) -> str:
    """The check of that rule alone, by that probe alone, and otherwise as it was told."""
    # A name may begin with a hyphen.
    words = ["welldone", "check", settings.url, *(["--model", model] if model[:1] != "-" else [f"--model={model}"])]
    if settings.endpoint != CHAT.name:
        words += ["--endpoint", settings.endpoint]
    words += ["--only", probe, "--rule", rule, *_command_options(settings)]
    return shlex.join(words)


def _command_options(settings: CheckSettings) -> Iterator[str]:
    """What the user has said of how to ask."""
    usual = CheckSettings(url=settings.url)
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
    if settings.timeouts.reply_s != usual.timeouts.reply_s:
        yield from ("--timeout", f"{settings.timeouts.reply_s:g}")
    if settings.jobs != usual.jobs:
        yield from ("--jobs", str(settings.jobs))
    if settings.is_strict:
        yield "--strict"


def repro_curl(settings: CheckSettings, request: ProbeRequest) -> str | None:
    """The request by hand, with the reply's head and framing, as `welldone lint` reads it; None: it is too long."""
    root = settings.url.rstrip("/").removesuffix("/v1") if request.is_root else settings.url.rstrip("/")
    words = ["curl", "-siN", "--raw", root + request.path, "-m", f"{settings.timeouts.reply_s:g}"]
    if settings.ca_file is not None:
        words += ["--cacert", settings.ca_file]
    if not settings.is_verified:
        words.append("--insecure")
    if request.method != ("GET" if request.body is None else "POST"):
        words += ["-X", request.method]
    given = {name.lower() for name, _ in request.headers}
    if request.body is not None and "content-type" not in given:
        words += ["-H", "Content-Type: application/json"]
    plain = [(name, value) for name, value in settings.dialect.headers if name not in given]
    words += [
        word
        for name, value in (*plain, *request.headers)
        for word in ("-H", f"{name}:" if value is None else f"{name}: {value}")
    ]
    line = " ".join([shlex.join(words), *_secret_headers(settings, given)])
    if request.body is not None:
        try:
            line += f" -d {shlex.quote(request.body.decode())}"
        except UnicodeDecodeError:
            return None
    return line if len(line) <= _MAX_COMMAND_CHARS and line.isprintable() else None


def _secret_headers(settings: CheckSettings, sent_headers: set[str]) -> Iterator[str]:
    """Headers with a value that the shell puts in."""
    if settings.key is not None and AUTHORIZATION.lower() not in sent_headers:
        yield f'-H "Authorization: Bearer ${_env_variable(settings, AUTHORIZATION)}"'
    name = settings.dialect.key_header
    if settings.key is not None and name is not None and name not in sent_headers:
        yield f'-H "{name}: ${_env_variable(settings, AUTHORIZATION)}"'
    for name, _ in settings.headers:
        if name.lower() not in sent_headers:
            yield f'-H {shlex.quote(f"{name}: ")}"${_env_variable(settings, name)}"'


def _env_variable(settings: CheckSettings, header: str) -> str:
    """The environment variable from which the value of a header comes, or could come."""
    made = API_KEY_VARIABLE if settings.key is not None and header == AUTHORIZATION else f"WELLDONE_{header.upper()}"
    return settings.env_variables.get(header) or re.sub(r"\W", "_", made, flags=re.ASCII)
