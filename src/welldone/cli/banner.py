"""What the server says when it listens: where, and a line to try that is right when it is pasted."""

import json
import shlex
import socket

from welldone import __version__
from welldone.serve.origins import is_loopback
from welldone.serve.settings import Config, ServeSettings

_NAMES = 5  # models that the first line names: more do not fit into it
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of a machine's, and what calls the machine from itself."""


def lines(config: Config, port: int, *, has_keys: bool, made: str | None, machine: str | None = None) -> list[str]:
    """The banner. `made` is the key that was made for this run, `machine` this machine's name."""
    settings = config.server
    url = _url(settings, _EVERYWHERE.get(_bare(settings.host), _bare(settings.host)), port)
    names = [model.name for model in config.models]
    shown = f"{', '.join(names[:_NAMES])}{' …' if len(names) > _NAMES else ''}"
    said = [f"welldone {__version__} serves {shown} on {url}/v1", "", *_curl(settings, url, names[0], has_keys, made)]
    said.append("")
    if not settings.no_page:
        said.append(f"  page      {url}/")
    if _bare(settings.host) in _EVERYWHERE:
        other = _url(settings, machine or socket.gethostname(), port)
        said.append(f"  others    {other}/v1, or this machine's address instead of its name")
    said += _about_key(settings, has_keys, made)
    said.append("  end       Ctrl-C")
    return said


def _bare(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")


def _url(settings: ServeSettings, host: str, port: int) -> str:
    scheme = "http" if settings.ssl_cert_file is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _curl(settings: ServeSettings, url: str, name: str, has_keys: bool, made: str | None) -> list[str]:
    request = {"model": name, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
    said = [f"  curl -N {shlex.quote(f'{url}/v1/chat/completions')} \\"]
    if settings.ssl_cert_file is not None:
        said.append(f"    --cacert {shlex.quote(str(settings.ssl_cert_file))} \\")
    if made is not None:
        said.append(f"    -H {shlex.quote(f'Authorization: Bearer {made}')} \\")
    elif has_keys:  # a key that the user chose is not shown
        said.append('    -H "Authorization: Bearer $WELLDONE_API_KEY" \\')
    said.append("    -H 'Content-Type: application/json' \\")
    said.append(f"    -d {shlex.quote(json.dumps(request, ensure_ascii=False, separators=(',', ':')))}")
    return said


def _about_key(settings: ServeSettings, has_keys: bool, made: str | None) -> list[str]:
    if made is not None:
        return [
            f"  API key   {made}",
            "            made for this run, since others can reach this address; choose one with --api-key",
        ]
    if has_keys:
        return ["  API key   one that you chose; the line above takes it from WELLDONE_API_KEY, which must hold it"]
    if not is_loopback(settings.host):
        return ["  warning   there is no API key: whoever reaches this address can use the models"]
    return []
