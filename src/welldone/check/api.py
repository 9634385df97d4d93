"""Synchronous API of the check: one call that also works inside a running event loop. The pytest plugin uses it."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from welldone.check import run, selection
from welldone.check.discovery import CheckUnreachableError
from welldone.check.report import Report
from welldone.check.reports import text
from welldone.check.settings import CheckSettings
from welldone.http.address import normalize_base_url
from welldone.http.asgi_server import ASGIApplication, InProcessServer, StartupFailedError
from welldone.http.recording_client import record_response
from welldone.http.redaction import API_KEY_VARIABLE

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
        endpoint=selection.parse_endpoint(endpoint),
        only=selection.parse_probe_names(only, endpoint),
        skip=selection.parse_probe_names(skip, endpoint),
        rules=selection.parse_rule_ids(rules),
        profile=selection.parse_profile(profile),
        is_strict=strict,
        known=None if known is None else frozenset(selection.parse_rule_ids(known)),
        extra=selection.parse_extra_members(extra or {}),
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
