"""What a user selects (probes, rules, a profile, request fields), and a synchronous call for the pytest plugin.

A profile is a client: it selects the rules whose violations are known to affect that client.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from welldone.check import run
from welldone.check.discovery import CheckUnreachableError
from welldone.check.probes import PROBES_BY_DIALECT
from welldone.check.report import CLIENT_LIBRARIES, Report
from welldone.check.reports import text
from welldone.check.settings import CHAT, DIALECTS, CheckSettings
from welldone.config.settings import did_you_mean, unknown_name, unknown_rule
from welldone.core.catalog import RULES
from welldone.http.address import normalize_base_url
from welldone.http.asgi_server import ASGIApplication, InProcessServer, StartupFailedError
from welldone.http.recording_client import record_response
from welldone.http.redaction import API_KEY_VARIABLE

CLIENTS = (
    *("openai-python", "openai-node", "ai-sdk", "langchain", "pydantic-ai", "litellm", "org-ai", "zed"),
    *("async-openai", "gptel", "openai-dotnet", "go-openai", "goose", "inference-benchmarker", "codex"),
    *("langchain4j", "open-webui", "openai-go", "anthropic-sdk-python", "anthropic-sdk-typescript"),
    *("google-genai-python", "google-genai-js"),
)
"""Clients that were measured or whose code was read (docs/matrix.md)."""


PROFILES = (*CLIENTS, *CLIENT_LIBRARIES)
RESERVED_FIELDS = (
    *("echo", "include", "input", "instructions", "logprobs", "max_completion_tokens", "max_output_tokens"),
    *("max_tokens", "messages", "model", "n", "prompt", "response_format", "stop", "stop_sequences", "stream"),
    *("stream_options", "suffix", "system", "text", "tool_choice", "tools", "top_logprobs"),
    *("contents", "systemInstruction", "toolConfig", "maxOutputTokens", "candidateCount", "stopSequences", "alt"),
)
"""Fields that the probes set themselves: other values would change what is checked."""


def parse_endpoint(name: str) -> str:
    """Validate the name of a dialect.

    Raises:
        ValueError: it is unknown.
    """
    if name not in DIALECTS:
        raise ValueError(unknown_name("endpoint", name, DIALECTS, f"there are {', '.join(DIALECTS)}"))
    return name


def parse_probe_names(requested: Iterable[str], endpoint: str = CHAT.name) -> tuple[str, ...]:
    """Validate names of an endpoint's probes or groups.

    Raises:
        ValueError: a name is unknown.
    """
    words = _as_names(requested)
    names = [probe.name for probe in PROBES_BY_DIALECT[endpoint]]
    groups = {name.partition("-")[0] for name in names}
    for word in words:
        if word not in names and not any(name.startswith(f"{word}-") for name in names):
            of = "" if endpoint == CHAT.name else f" of {endpoint}"
            hint = did_you_mean(word, {*names, *groups})
            raise ValueError(f"there is no probe {word!r}{of}{hint}; --list shows them")
    return words


def parse_rule_ids(rule_ids: Iterable[str]) -> tuple[str, ...]:
    """Validate rule ids.

    Raises:
        ValueError: an id is unknown.
    """
    words = _as_names(rule_ids)
    for rule in words:
        if rule not in RULES:
            raise ValueError(unknown_rule(rule, RULES))
    return words


def parse_profile(name: str | None) -> str | None:
    """Validate the name of a client.

    Raises:
        ValueError: it is unknown.
    """
    if name is not None and name not in PROFILES:
        raise ValueError(unknown_name("profile", name, PROFILES, f"there are {', '.join(PROFILES)}"))
    return name


def parse_extra_members(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Validate additional request fields.

    Raises:
        ValueError: the probes set one of them.
    """
    for name in extra:
        if name in RESERVED_FIELDS:
            raise ValueError(f"{name} is set by the probes themselves; leave it out")
    return extra


def _as_names(names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):  # it would be iterated letter by letter
        raise ValueError(f"{names!r} should be a list of names")  # noqa: TRY004 - all errors here are ValueErrors
    return tuple(names)


IN_PROCESS_URL = "http://localhost/v1"
"""Base URL of an application that is checked without a port."""


class CheckFailedError(Exception):
    """The server does not pass, or cannot be checked. The message is the output of `welldone check`."""


def check_server(
    url: str | None = None,
    *,
    asgi_app: ASGIApplication | None = None,
    endpoint: str = "chat",
    model: str | None = None,
    api_key: str | None = None,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    rules: Iterable[str] = (),
    profile: str | None = None,
    strict: bool = False,
    known: Iterable[str] | None = None,
    extra: Mapping[str, Any] | None = None,
    check: bool = True,
) -> Report:
    """Check the server at `url`. Rules in `known` may be broken; with `check=False`, all rules may.

    With `asgi_app`, that application is checked in this process, without a port: in an event loop of its own, with its
    lifespan. `url` then only gives the prefix of its paths and the Host header.

    Raises:
        CheckFailedError: the server does not pass, or cannot be checked.
        TypeError: there is neither a URL nor an application.
        ValueError: the URL or the key is invalid, or a probe, rule, profile or field is unknown.
    """
    if url is None and asgi_app is None:
        raise TypeError("give the URL of a server, or an ASGI application as asgi_app")
    settings = CheckSettings(
        url=normalize_base_url(IN_PROCESS_URL if url is None else url),
        model=model,
        key=api_key or os.environ.get(API_KEY_VARIABLE) or None,
        endpoint=parse_endpoint(endpoint),
        only=parse_probe_names(only, endpoint),
        skip=parse_probe_names(skip, endpoint),
        rules=parse_rule_ids(rules),
        profile=parse_profile(profile),
        is_strict=strict,
        known=None if known is None else frozenset(parse_rule_ids(known)),
        extra=parse_extra_members(extra or {}),
    )
    # In a thread with its own event loop: the caller may run inside one.
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:
            report = pool.submit(asyncio.run, _check(settings, asgi_app)).result()
        except (CheckUnreachableError, StartupFailedError, run.NothingToCheckError) as error:
            raise CheckFailedError(f"welldone check: {error}") from None
    if check and not report.passed:
        raise CheckFailedError("\n".join(text.render_terminal(report, lambda text, _: text)))
    return report


async def _check(settings: CheckSettings, asgi_app: ASGIApplication | None) -> Report:
    if asgi_app is None:
        return await run.check(settings)
    async with InProcessServer(asgi_app) as server:
        return await run.check(settings, record_response=partial(record_response, connect=server.connect))
