"""How to see a finding again: the command, and the request by hand. Keys stand in neither."""

import shlex

from welldone.check.reply import Asked
from welldone.check.settings import CheckSettings

KEY_VARIABLE = "WELLDONE_API_KEY"
_LINE_LIMIT = 4000  # characters that people still paste into a terminal


def command(settings: CheckSettings, model: str, probe: str, rule: str) -> str:
    """The check of that rule alone, by that probe alone."""
    words = ["welldone", "check", settings.url, "--model", model, "--only", probe, "--rule", rule]
    if settings.key is not None:
        words += ["--api-key", f"env:{KEY_VARIABLE}"]
    return shlex.join(words)


def curl(settings: CheckSettings, asked: Asked) -> str | None:
    """The request by hand, with the reply's head and framing, as `welldone lint` reads it; None: it is too long."""
    root = settings.url.rstrip("/").removesuffix("/v1") if asked.is_root else settings.url.rstrip("/")
    words = ["curl", "-siN", "--raw", root + asked.path]
    if asked.method != ("GET" if asked.body is None else "POST"):
        words += ["-X", asked.method]
    given = {name.lower() for name, _ in asked.headers}
    if asked.body is not None and "content-type" not in given:
        words += ["-H", "Content-Type: application/json"]
    words += [
        word for name, value in asked.headers for word in ("-H", f"{name}:" if value is None else f"{name}: {value}")
    ]
    line = shlex.join(words)
    if settings.key is not None and "authorization" not in given:
        line += f' -H "Authorization: Bearer ${KEY_VARIABLE}"'
    if asked.body is not None:
        try:
            line += f" -d {shlex.quote(asked.body.decode())}"
        except UnicodeDecodeError:
            return None
    return line if len(line) <= _LINE_LIMIT and line.isprintable() else None
