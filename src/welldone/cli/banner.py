"""Startup banner of the server: URL and an example request; with `--log-format json`, one JSON line."""

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

_MAX_SEGMENT_CHARS = 16  # longer segments of a URL path may be keys and are not shown


def redacted_url(upstream: UpstreamSettings) -> str:
    """Return the URL of an upstream without long path segments, which may be secrets."""
    split = urlsplit(upstream.url)
    path = "/".join(word if len(word) <= _MAX_SEGMENT_CHARS else "…" for word in split.path.split("/"))
    return f"{split.scheme}://{split.netloc}{path}"


def describe_models(upstream: UpstreamSettings) -> str:
    """Return the models that the upstream is configured for."""
    return ", ".join(upstream.models) or "its own list"


_MAX_NAMES = 5  # per line
_MAX_UPSTREAMS = 10  # lines for upstreams
_WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
"""Wildcard addresses, and the loopback address that reaches them."""


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
    """Return the lines of the banner.

    `generated_key` is the key that was generated for this run, `listed_model` a model that an upstream lists.
    """
    settings = config.server
    if settings.log_format == "json":
        return [_json_banner(config, port, has_keys, generated_key)]
    url = _server_url(
        settings, _WILDCARD_HOSTS.get(_strip_brackets(settings.host), _strip_brackets(settings.host)), port
    )
    lines = [f"welldone {__version__} serves {_served_models(config)} on {url}/v1", ""]
    lines += _curl_example(config, url, _example_model(config) or listed_model, has_keys, generated_key)
    lines.append("")
    lines += _upstream_lines(config)
    if not settings.no_page:
        lines.append(f"  page      {url}/")
    if _strip_brackets(settings.host) in _WILDCARD_HOSTS:
        remote_url = _server_url(settings, hostname or socket.gethostname(), port)
        lines.append(f"  network   {remote_url}/v1, or this machine's address instead of its name")
    lines += _key_lines(config, has_keys, generated_key)
    lines.append(f"  stop      {stop_hint}")
    return lines


def _json_banner(config: Config, port: int, has_keys: bool, generated_key: str | None) -> str:
    """Return the banner as JSON. It includes a generated key: without it no client could use the server."""
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
    insecure = [upstream.name for upstream in config.upstreams if upstream.insecure]
    return [f"insecure = true: the certificate of {_first_names(insecure)} is not verified"] if insecure else []


def _no_key_warnings(config: Config, has_keys: bool) -> list[str]:
    if has_keys or is_loopback(config.server.host):
        return []
    return ["no API key: anyone who reaches this address can use the models"]


def _upstream_lines(config: Config) -> list[str]:
    width = max((len(upstream.name) for upstream in config.upstreams), default=0)
    lines = [
        f"  upstream  {upstream.name:<{width}}  {redacted_url(upstream)}, {describe_models(upstream)}"
        for upstream in config.upstreams[:_MAX_UPSTREAMS]
    ]
    if len(config.upstreams) > _MAX_UPSTREAMS:
        lines.append(f"            and {len(config.upstreams) - _MAX_UPSTREAMS} more")
    if config.routes:
        lines.append(f"  routes    {_first_names(config.routes)}")
    if config.server.workers > 1:
        lines.append(f"  workers   {config.server.workers}")
    return lines + [f"  warning   {text}" for text in _insecure_warnings(config)]


def _first_names(names: Iterable[str]) -> str:
    names = list(names)
    return f"{', '.join(names[:_MAX_NAMES])}{' …' if len(names) > _MAX_NAMES else ''}"


def _strip_brackets(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")


def _server_url(settings: ServeSettings, host: str, port: int) -> str:
    scheme = "http" if settings.ssl_cert_file is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _served_models(config: Config) -> str:
    parts = [_first_names(model.name for model in config.models)] if config.models else []
    if config.upstreams:
        parts.append(f"the models of {_first_names(upstream.name for upstream in config.upstreams)}")
    return " and ".join(parts)


def _example_model(config: Config) -> str | None:
    """Return a model from the settings; None if only the upstreams list models."""
    names = [model.name for model in config.models]
    names += [*config.routes, *(name for upstream in config.upstreams for name in upstream.models)]
    return next((name for name in names if "*" not in name), None)


def _curl_example(config: Config, url: str, name: str | None, has_keys: bool, generated_key: str | None) -> list[str]:
    settings = config.server
    path = "models" if name is None else "chat/completions"
    lines = [f"  curl -N {shlex.quote(f'{url}/v1/{path}')}"]
    if settings.ssl_cert_file is not None:
        lines.append(f"    --cacert {shlex.quote(str(settings.ssl_cert_file))}")
    if generated_key is not None:
        lines.append(f"    -H {shlex.quote(f'Authorization: Bearer {generated_key}')}")
    elif _has_only_named_keys(config) or _has_only_shared_keys(config):
        lines.append("    -H 'Authorization: Bearer YOUR_KEY'")
    elif has_keys:  # a configured key is not printed
        lines.append('    -H "Authorization: Bearer $WELLDONE_API_KEY"')
    if name is not None:
        request = {"model": name, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
        lines.append("    -H 'Content-Type: application/json'")
        lines.append(f"    -d {shlex.quote(json.dumps(request, ensure_ascii=False, separators=(',', ':')))}")
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _has_only_named_keys(config: Config) -> bool:
    """Whether every key has a name, so that WELLDONE_API_KEY does not hold one."""
    return bool(config.keys) and not config.server.api_keys and config.server.api_key_file is None


def _has_only_shared_keys(config: Config) -> bool:
    """Whether all keys are in the shared store."""
    return config.has_shared_keys and not config.keys and not config.server.api_keys and not config.server.api_key_file


def _key_lines(config: Config, has_keys: bool, generated_key: str | None) -> list[str]:
    if generated_key is not None:
        return [
            f"  API key   {generated_key}",
            "            generated for this run, because the address is public; set your own with --api-key",
        ]
    names = _first_names(key.name for key in config.keys)
    if _has_only_named_keys(config):
        return [f"  API key   that of {names}: replace YOUR_KEY above with it"]
    if _has_only_shared_keys(config):
        return ["  API key   one from the store (welldone keys add NAME creates one): replace YOUR_KEY above with it"]
    if has_keys:
        others = [f"            or that of {names}"] if config.keys else []
        return [
            "  API key   the configured one; the command above reads it from WELLDONE_API_KEY",
            *others,
        ]
    return [f"  warning   {text}" for text in _no_key_warnings(config, has_keys)]
