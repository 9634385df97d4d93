"""What the server prints when it listens: where, and a command to try; with `--log-format json` one JSON line."""

import json
import logging
import shlex
import socket
from collections.abc import Iterable

from welldone import __version__
from welldone.cli.upstreams import models, url_of
from welldone.serve import log
from welldone.serve.origins import is_loopback
from welldone.serve.settings import Config, ServeSettings

_NAMES = 5  # models that the first line names, and names in others: more do not fit into it
_UPSTREAMS = 10  # upstreams that have a line: more hide the rest
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of a machine's, and what calls the machine from itself."""


def lines(
    config: Config,
    port: int,
    *,
    has_keys: bool,
    made: str | None,
    listed: str | None = None,
    machine: str | None = None,
    end: str = "Ctrl-C",
) -> list[str]:
    """The banner.

    `made` is the key that was made for this run, `listed` a model of an upstream, `machine` this machine's name.
    """
    settings = config.server
    if settings.log_format == "json":
        return [_record(config, port, has_keys, made)]
    url = _url(settings, _EVERYWHERE.get(_bare(settings.host), _bare(settings.host)), port)
    said = [f"welldone {__version__} serves {_served(config)} on {url}/v1", ""]
    said += _curl(config, url, _example(config) or listed, has_keys, made)
    said.append("")
    said += _about_upstreams(config)
    if not settings.no_page:
        said.append(f"  page      {url}/")
    if _bare(settings.host) in _EVERYWHERE:
        other = _url(settings, machine or socket.gethostname(), port)
        said.append(f"  others    {other}/v1, or this machine's address instead of its name")
    said += _about_key(config, has_keys, made)
    said.append(f"  end       {end}")
    return said


def _record(config: Config, port: int, has_keys: bool, made: str | None) -> str:
    """The banner for programs. A key that was made for this run is in it: nobody could call the server without."""
    settings = config.server
    url = _url(settings, _EVERYWHERE.get(_bare(settings.host), _bare(settings.host)), port)
    fields: dict[str, log.Value] = {
        "version": __version__,
        "url": f"{url}/v1",
        "models": [model.name for model in config.models],
        "upstreams": [upstream.name for upstream in config.upstreams],
        "workers": settings.workers,
    }
    if not settings.no_page:
        fields["page"] = f"{url}/"
    if made is not None:
        fields["api_key"] = made
    if warnings := [*_about_insecure(config), *_about_no_key(config, has_keys)]:
        fields["warnings"] = warnings
    return log.json_line(logging.INFO, "listening", fields)


def _about_insecure(config: Config) -> list[str]:
    unsafe = [upstream.name for upstream in config.upstreams if upstream.insecure]
    return [f"insecure = true: nobody checks the certificate of {_some(unsafe)}"] if unsafe else []


def _about_no_key(config: Config, has_keys: bool) -> list[str]:
    if has_keys or is_loopback(config.server.host):
        return []
    return ["there is no API key: whoever reaches this address can use the models"]


def _about_upstreams(config: Config) -> list[str]:
    width = max((len(upstream.name) for upstream in config.upstreams), default=0)
    said = [
        f"  upstream  {upstream.name:<{width}}  {url_of(upstream)}, {models(upstream)}"
        for upstream in config.upstreams[:_UPSTREAMS]
    ]
    if len(config.upstreams) > _UPSTREAMS:
        said.append(f"            and {len(config.upstreams) - _UPSTREAMS} more")
    if config.routes:
        said.append(f"  routes    {_some(config.routes)}")
    if config.server.workers > 1:
        said.append(f"  workers   {config.server.workers}")
    return said + [f"  warning   {text}" for text in _about_insecure(config)]


def _some(names: Iterable[str]) -> str:
    """The first names."""
    names = list(names)
    return f"{', '.join(names[:_NAMES])}{' …' if len(names) > _NAMES else ''}"


def _bare(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")


def _url(settings: ServeSettings, host: str, port: int) -> str:
    scheme = "http" if settings.ssl_cert_file is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _served(config: Config) -> str:
    """What the first line names."""
    shown = [_some(model.name for model in config.models)] if config.models else []
    if config.upstreams:
        shown.append(f"the models of {_some(upstream.name for upstream in config.upstreams)}")
    return " and ".join(shown)


def _example(config: Config) -> str | None:
    """A model that the user named; None: only the upstreams know."""
    names = [model.name for model in config.models]
    names += [*config.routes, *(name for upstream in config.upstreams for name in upstream.models)]
    return next((name for name in names if "*" not in name), None)


def _curl(config: Config, url: str, name: str | None, has_keys: bool, made: str | None) -> list[str]:
    settings = config.server
    path = "models" if name is None else "chat/completions"
    said = [f"  curl -N {shlex.quote(f'{url}/v1/{path}')}"]
    if settings.ssl_cert_file is not None:
        said.append(f"    --cacert {shlex.quote(str(settings.ssl_cert_file))}")
    if made is not None:
        said.append(f"    -H {shlex.quote(f'Authorization: Bearer {made}')}")
    elif _has_only_names(config) or _has_only_shared(config):
        said.append("    -H 'Authorization: Bearer YOUR_KEY'")
    elif has_keys:  # a key that the user chose is not shown
        said.append('    -H "Authorization: Bearer $WELLDONE_API_KEY"')
    if name is not None:
        request = {"model": name, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
        said.append("    -H 'Content-Type: application/json'")
        said.append(f"    -d {shlex.quote(json.dumps(request, ensure_ascii=False, separators=(',', ':')))}")
    return [f"{line} \\" for line in said[:-1]] + said[-1:]


def _has_only_names(config: Config) -> bool:
    """Whether each key has a name: then no variable of the environment holds the one that is meant."""
    return bool(config.keys) and not config.server.api_keys and config.server.api_key_file is None


def _has_only_shared(config: Config) -> bool:
    """Whether all keys are in the store."""
    return config.has_shared_keys and not config.keys and not config.server.api_keys and not config.server.api_key_file


def _about_key(config: Config, has_keys: bool, made: str | None) -> list[str]:
    if made is not None:
        return [
            f"  API key   {made}",
            "            made for this run, since others can reach this address; choose one with --api-key",
        ]
    names = _some(key.name for key in config.keys)
    if _has_only_names(config):
        return [f"  API key   that of {names}: write it instead of YOUR_KEY in the line above"]
    if _has_only_shared(config):
        return ["  API key   one of the store: welldone keys add NAME makes one; write it instead of YOUR_KEY above"]
    if has_keys:
        others = [f"            or that of {names}"] if config.keys else []
        return [
            "  API key   one that you chose; the line above takes it from WELLDONE_API_KEY, which must hold it",
            *others,
        ]
    return [f"  warning   {text}" for text in _about_no_key(config, has_keys)]
