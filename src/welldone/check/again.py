"""How to see a finding again: the command, and the request by hand. Of secrets they say only where they are found."""

import json
import re
import shlex
from collections.abc import Iterator

from welldone.check.dialect import CHAT
from welldone.check.reply import Asked
from welldone.check.settings import CheckSettings
from welldone.net.secrets import KEY_VARIABLE as KEY_VARIABLE

AUTHORIZATION = "Authorization"
_LINE_LIMIT = 4000  # characters that people still paste into a terminal


def command(settings: CheckSettings, model: str, probe: str, rule: str) -> str:
    """The check of that rule alone, by that probe alone, and otherwise as it was told."""
    # A name may begin with a hyphen.
    words = ["welldone", "check", settings.url, *(["--model", model] if model[:1] != "-" else [f"--model={model}"])]
    if settings.endpoint != CHAT.name:
        words += ["--endpoint", settings.endpoint]
    words += ["--only", probe, "--rule", rule, *_options(settings)]
    return shlex.join(words)


def _options(settings: CheckSettings) -> Iterator[str]:
    """What the user has said of how to ask."""
    usual = CheckSettings(url=settings.url)
    if settings.key is not None:
        yield from ("--api-key", f"env:{_variable(settings, AUTHORIZATION)}")
    for name, _ in settings.headers:
        yield from ("--header", f"{name}: env:{_variable(settings, name)}")
    if settings.extra:
        yield from ("--extra", json.dumps(settings.extra, ensure_ascii=False, separators=(",", ":")))
    if settings.ca_file is not None:
        yield from ("--ca-file", settings.ca_file)
    if not settings.is_verified:
        yield "--insecure"
    if settings.patience.reply_s != usual.patience.reply_s:
        yield from ("--timeout", f"{settings.patience.reply_s:g}")
    if settings.side_by_side != usual.side_by_side:
        yield from ("--jobs", str(settings.side_by_side))
    if settings.is_strict:
        yield "--strict"


def curl(settings: CheckSettings, asked: Asked) -> str | None:
    """The request by hand, with the reply's head and framing, as `welldone lint` reads it; None: it is too long."""
    root = settings.url.rstrip("/").removesuffix("/v1") if asked.is_root else settings.url.rstrip("/")
    words = ["curl", "-siN", "--raw", root + asked.path, "-m", f"{settings.patience.reply_s:g}"]
    if settings.ca_file is not None:
        words += ["--cacert", settings.ca_file]
    if not settings.is_verified:
        words.append("--insecure")
    if asked.method != ("GET" if asked.body is None else "POST"):
        words += ["-X", asked.method]
    given = {name.lower() for name, _ in asked.headers}
    if asked.body is not None and "content-type" not in given:
        words += ["-H", "Content-Type: application/json"]
    plain = [(name, value) for name, value in settings.dialect.headers if name not in given]
    words += [
        word
        for name, value in (*plain, *asked.headers)
        for word in ("-H", f"{name}:" if value is None else f"{name}: {value}")
    ]
    line = " ".join([shlex.join(words), *_secret_headers(settings, given)])
    if asked.body is not None:
        try:
            line += f" -d {shlex.quote(asked.body.decode())}"
        except UnicodeDecodeError:
            return None
    return line if len(line) <= _LINE_LIMIT and line.isprintable() else None


def _secret_headers(settings: CheckSettings, given: set[str]) -> Iterator[str]:
    """Headers with a value that the shell puts in."""
    if settings.key is not None and AUTHORIZATION.lower() not in given:
        yield f'-H "Authorization: Bearer ${_variable(settings, AUTHORIZATION)}"'
    name = settings.dialect.key_header
    if settings.key is not None and name is not None and name not in given:
        yield f'-H "{name}: ${_variable(settings, AUTHORIZATION)}"'
    for name, _ in settings.headers:
        if name.lower() not in given:
            yield f'-H {shlex.quote(f"{name}: ")}"${_variable(settings, name)}"'


def _variable(settings: CheckSettings, header: str) -> str:
    """The environment variable from which the value of a header comes, or could come."""
    made = KEY_VARIABLE if settings.key is not None and header == AUTHORIZATION else f"WELLDONE_{header.upper()}"
    return settings.variables.get(header) or re.sub(r"\W", "_", made, flags=re.ASCII)
