"""What the server prints when it listens: where, and a command to try; with `--log-format json` one JSON line."""

import json
import logging
import shlex
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from welldone import __version__
from welldone.config.server import Config, ServeSettings
from welldone.config.upstream import UpstreamSettings
from welldone.server.access.origins import is_loopback
from welldone.server.observe import log

# How upstreams are shown.


_MAX_SEGMENT_CHARS = 16  # characters of a part of a path that is shown; keys are longer


def redacted_url(upstream: UpstreamSettings) -> str:
    """Where it is, without what may be a secret: a long word in the path."""
    split = urlsplit(upstream.url)
    path = "/".join(word if len(word) <= _MAX_SEGMENT_CHARS else "…" for word in split.path.split("/"))
    return f"{split.scheme}://{split.netloc}{path}"


def describe_models(upstream: UpstreamSettings) -> str:
    """Which models it is asked for."""
    return ", ".join(upstream.models) or "its own list"


_MAX_NAMES = 5  # models that the first line names, and names in others: more do not fit into it
_MAX_UPSTREAMS = 10  # upstreams that have a line: more hide the rest
_WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of a machine's, and what calls the machine from itself."""


def banner_lines(
    config: Config,
    port: int,
    *,
    has_keys: bool,
    generated_key: str | None,
    listed_model: str | None = None,
    hostname: str | None = None,
    stop_hint: str = "Ctrl-C",
) -> list[str]:
    """The banner.

    `made` is the key that was made for this run, `listed` a model of an upstream, `machine` this machine's name.
    """
    settings = config.server
    if settings.log_format == "json":
        return [_json_banner(config, port, has_keys, generated_key)]
    url = _server_url(
        settings, _WILDCARD_HOSTS.get(_strip_brackets(settings.host), _strip_brackets(settings.host)), port
    )
    said = [f"welldone {__version__} serves {_served_models(config)} on {url}/v1", ""]
    said += _curl_example(config, url, _example_model(config) or listed_model, has_keys, generated_key)
    said.append("")
    said += _upstream_lines(config)
    if not settings.no_page:
        said.append(f"  page      {url}/")
    if _strip_brackets(settings.host) in _WILDCARD_HOSTS:
        other = _server_url(settings, hostname or socket.gethostname(), port)
        said.append(f"  others    {other}/v1, or this machine's address instead of its name")
    said += _key_lines(config, has_keys, generated_key)
    said.append(f"  end       {stop_hint}")
    return said


def _json_banner(config: Config, port: int, has_keys: bool, generated_key: str | None) -> str:
    """The banner for programs. A key that was made for this run is in it: nobody could call the server without."""
    settings = config.server
    url = _server_url(
        settings, _WILDCARD_HOSTS.get(_strip_brackets(settings.host), _strip_brackets(settings.host)), port
    )
    fields: dict[str, log.FieldValue] = {
        "version": __version__,
        "url": f"{url}/v1",
        "models": [model.name for model in config.models],
        "upstreams": [upstream.name for upstream in config.upstreams],
        "workers": settings.workers,
    }
    if not settings.no_page:
        fields["page"] = f"{url}/"
    if generated_key is not None:
        fields["api_key"] = generated_key
    if warnings := [*_insecure_warnings(config), *_no_key_warnings(config, has_keys)]:
        fields["warnings"] = warnings
    return log.json_line(logging.INFO, "listening", fields)


def _insecure_warnings(config: Config) -> list[str]:
    unsafe = [upstream.name for upstream in config.upstreams if upstream.insecure]
    return [f"insecure = true: nobody checks the certificate of {_first_names(unsafe)}"] if unsafe else []


def _no_key_warnings(config: Config, has_keys: bool) -> list[str]:
    if has_keys or is_loopback(config.server.host):
        return []
    return ["there is no API key: whoever reaches this address can use the models"]


def _upstream_lines(config: Config) -> list[str]:
    width = max((len(upstream.name) for upstream in config.upstreams), default=0)
    said = [
        f"  upstream  {upstream.name:<{width}}  {redacted_url(upstream)}, {describe_models(upstream)}"
        for upstream in config.upstreams[:_MAX_UPSTREAMS]
    ]
    if len(config.upstreams) > _MAX_UPSTREAMS:
        said.append(f"            and {len(config.upstreams) - _MAX_UPSTREAMS} more")
    if config.routes:
        said.append(f"  routes    {_first_names(config.routes)}")
    if config.server.workers > 1:
        said.append(f"  workers   {config.server.workers}")
    return said + [f"  warning   {text}" for text in _insecure_warnings(config)]


def _first_names(names: Iterable[str]) -> str:
    """The first names."""
    names = list(names)
    return f"{', '.join(names[:_MAX_NAMES])}{' …' if len(names) > _MAX_NAMES else ''}"


def _strip_brackets(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")


def _server_url(settings: ServeSettings, host: str, port: int) -> str:
    scheme = "http" if settings.ssl_cert_file is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _served_models(config: Config) -> str:
    """What the first line names."""
    shown = [_first_names(model.name for model in config.models)] if config.models else []
    if config.upstreams:
        shown.append(f"the models of {_first_names(upstream.name for upstream in config.upstreams)}")
    return " and ".join(shown)


def _example_model(config: Config) -> str | None:
    """A model that the user named; None: only the upstreams know."""
    names = [model.name for model in config.models]
    names += [*config.routes, *(name for upstream in config.upstreams for name in upstream.models)]
    return next((name for name in names if "*" not in name), None)


def _curl_example(config: Config, url: str, name: str | None, has_keys: bool, generated_key: str | None) -> list[str]:
    settings = config.server
    path = "models" if name is None else "chat/completions"
    said = [f"  curl -N {shlex.quote(f'{url}/v1/{path}')}"]
    if settings.ssl_cert_file is not None:
        said.append(f"    --cacert {shlex.quote(str(settings.ssl_cert_file))}")
    if generated_key is not None:
        said.append(f"    -H {shlex.quote(f'Authorization: Bearer {generated_key}')}")
    elif _has_only_named_keys(config) or _has_only_shared_keys(config):
        said.append("    -H 'Authorization: Bearer YOUR_KEY'")
    elif has_keys:  # a key that the user chose is not shown
        said.append('    -H "Authorization: Bearer $WELLDONE_API_KEY"')
    if name is not None:
        request = {"model": name, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
        said.append("    -H 'Content-Type: application/json'")
        said.append(f"    -d {shlex.quote(json.dumps(request, ensure_ascii=False, separators=(',', ':')))}")
    return [f"{line} \\" for line in said[:-1]] + said[-1:]


def _has_only_named_keys(config: Config) -> bool:
    """Whether each key has a name: then no variable of the environment holds the one that is meant."""
    return bool(config.keys) and not config.server.api_keys and config.server.api_key_file is None


def _has_only_shared_keys(config: Config) -> bool:
    """Whether all keys are in the store."""
    return config.has_shared_keys and not config.keys and not config.server.api_keys and not config.server.api_key_file


def _key_lines(config: Config, has_keys: bool, generated_key: str | None) -> list[str]:
    if generated_key is not None:
        return [
            f"  API key   {generated_key}",
            "            made for this run, since others can reach this address; choose one with --api-key",
        ]
    names = _first_names(key.name for key in config.keys)
    if _has_only_named_keys(config):
        return [f"  API key   that of {names}: write it instead of YOUR_KEY in the line above"]
    if _has_only_shared_keys(config):
        return ["  API key   one of the store: welldone keys add NAME makes one; write it instead of YOUR_KEY above"]
    if has_keys:
        others = [f"            or that of {names}"] if config.keys else []
        return [
            "  API key   one that you chose; the line above takes it from WELLDONE_API_KEY, which must hold it",
            *others,
        ]
    return [f"  warning   {text}" for text in _no_key_warnings(config, has_keys)]
