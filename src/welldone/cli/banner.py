"""Startup banner of the server: URL and an example request; with `--log-format json`, one JSON line."""

import json
import logging
import shlex
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from welldone import __version__
from welldone.cli import ui
from welldone.config.server import Config
from welldone.config.upstream import UpstreamSettings
from welldone.engines.models.repository import find_configured_model
from welldone.server.access.origins import is_loopback
from welldone.server.observe import log

_MAX_SEGMENT_CHARS = 16  # longer segments of a URL path may be keys and are not shown


def redacted_url(upstream: UpstreamSettings) -> str:
    """Return the URL of an upstream without long path segments, which may be secrets."""
    split = urlsplit(upstream.url)
    path = "/".join(word if len(word) <= _MAX_SEGMENT_CHARS else "…" for word in split.path.split("/"))
    return f"{split.scheme}://{split.netloc}{path}"


_MAX_NAMES = 5  # per line
_MAX_UPSTREAMS = 10  # lines for upstreams


def banner_lines(
    config: Config,
    port: int,
    *,
    has_keys: bool,
    generated_key: str | None,
    listed_model: str | None = None,
    hostname: str | None = None,
    engines: Sequence[str] = (),
    stop_hint: str = "Ctrl-C",
) -> list[str]:
    """Return the lines of the banner.

    `generated_key` is the key that was generated for this run, `listed_model` a model that an upstream lists, `engines`
    describes the engines of local models.
    """
    settings = config.server
    is_tls = settings.ssl_cert_file is not None
    url = ui.server_url(settings.host, port, is_tls=is_tls)
    if settings.log_format == "json":
        return [_json_banner(config, url, has_keys, generated_key, engines)]
    served = [_first_names(model.name for model in config.models)] if config.models else []
    if config.upstreams:
        served.append(f"the models of {_first_names(upstream.name for upstream in config.upstreams)}")
    lines = [f"welldone {__version__} serves {' and '.join(served)} on {url}/v1", ""]
    key_header, key_lines = _key_help(config, has_keys, generated_key)
    lines += [*_curl_example(config, url, _example_model(config) or listed_model, key_header), ""]
    lines += _upstream_lines(config)
    lines += [f"  {'' if number else 'engine':<8}  {text}" for number, text in enumerate(engines)]
    if not settings.no_page:
        lines.append(f"  page      {url}/")
    if ui.strip_brackets(settings.host) in ui.WILDCARD_HOSTS:
        remote_url = ui.server_url(hostname or socket.gethostname(), port, is_tls=is_tls)
        lines.append(f"  network   {remote_url}/v1, or this machine's address instead of its name")
    return [*lines, *key_lines, f"  stop      {stop_hint}"]


def check_lines(config: Config, folder: Path, keys: Sequence[str], generated_key: str | None) -> list[str]:
    """Return the lines of `--check-config`: what would be served, without secrets. `folder` has the models."""
    settings = config.server
    has_tls = settings.ssl_cert_file is not None
    lines = [f"the configuration is valid{'' if settings.config is None else f' ({settings.config})'}"]
    lines.append(f"  address   {settings.host}, port {settings.port}{', with TLS' if has_tls else ''}")
    for model in config.models:
        path = None if model.command else find_configured_model(folder, model)
        source = f"command {model.command[0]}" if model.command else path or "downloaded at the start"
        lines.append(f"  model     {ui.printable_name(model.name)}  {ui.printable_name(source)}")
    count = len(keys) + len(config.keys)
    text = f"{count}, generated at each start" if generated_key is not None else str(count)
    if config.has_stored_keys:
        text += f", and those in {settings.keys_file or 'the store'}"
    warnings = [f"  warning   {warning}" for warning in _no_key_warnings(config, config.has_keys(keys))]
    return [*lines, *_upstream_lines(config), f"  API keys  {text}", *warnings]


def _json_banner(config: Config, url: str, has_keys: bool, generated_key: str | None, engines: Sequence[str]) -> str:
    """Return the banner as JSON. It includes a generated key: without it no client could use the server."""
    settings = config.server
    fields: dict[str, log.FieldValue] = {
        "version": __version__,
        "url": f"{url}/v1",
        "models": [model.name for model in config.models],
        "upstreams": [upstream.name for upstream in config.upstreams],
        "workers": settings.workers,
    }
    if engines:
        fields["engines"] = list(engines)
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
    lines = []
    for upstream in config.upstreams[:_MAX_UPSTREAMS]:
        models = ", ".join(upstream.models) or "its own list"
        lines.append(f"  upstream  {upstream.name:<{width}}  {redacted_url(upstream)}, {models}")
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


def _example_model(config: Config) -> str | None:
    """Return a model from the settings; None if only the upstreams list models."""
    names = [model.name for model in config.models]
    names += [*config.routes, *(name for upstream in config.upstreams for name in upstream.models)]
    return next((name for name in names if "*" not in name), None)


def _curl_example(config: Config, url: str, name: str | None, key_header: str | None) -> list[str]:
    certificate = config.server.ssl_cert_file
    path = "models" if name is None else "chat/completions"
    lines = [f"  curl -N {shlex.quote(f'{url}/v1/{path}')}"]
    if certificate is not None:
        lines.append(f"    --cacert {shlex.quote(str(certificate))}")
    if key_header is not None:
        lines.append(f"    -H {key_header}")
    if name is not None:
        request = {"model": name, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
        lines.append("    -H 'Content-Type: application/json'")
        lines.append(f"    -d {shlex.quote(json.dumps(request, ensure_ascii=False, separators=(',', ':')))}")
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _key_help(config: Config, has_keys: bool, generated_key: str | None) -> tuple[str | None, list[str]]:
    """Return the header of the example request, quoted for a shell, and the lines about API keys."""
    your_key = "'Authorization: Bearer YOUR_KEY'"
    names = _first_names(key.name for key in config.keys)
    has_unnamed = bool(config.server.api_keys) or config.server.api_key_file is not None
    if generated_key is not None:
        return shlex.quote(f"Authorization: Bearer {generated_key}"), [
            f"  API key   {generated_key}",
            "            generated for this run, because the address is public;",
            "            --api-key sets your own, --no-api-key allows requests without one",
        ]
    if config.keys and not has_unnamed:  # WELLDONE_API_KEY does not hold a key with a name
        return your_key, [f"  API key   that of {names}: replace YOUR_KEY above with it"]
    if config.has_stored_keys and not has_unnamed:
        place = "store" if config.server.keys_file is None else "key file"
        line = f"  API key   one from the {place} (welldone keys add NAME creates one): replace YOUR_KEY above with it"
        return your_key, [line]
    if has_keys:  # a configured key is not printed
        others = [f"            or that of {names}"] if config.keys else []
        line = "  API key   the configured one; the command above reads it from WELLDONE_API_KEY"
        return '"Authorization: Bearer $WELLDONE_API_KEY"', [line, *others]
    return None, [f"  warning   {text}" for text in _no_key_warnings(config, has_keys)]
