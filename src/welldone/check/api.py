"""Synchronous API of the check: one call that also works inside a running event loop. The pytest plugin uses it."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from welldone.check import run, selection
from welldone.check.discovery import CheckUnreachableError
from welldone.check.report import Report
from welldone.check.reports import text
from welldone.check.settings import CheckSettings
from welldone.http.address import normalize_base_url
from welldone.http.redaction import API_KEY_VARIABLE


class CheckFailedError(Exception):
    """The server does not pass, or cannot be checked. The message is the output of `welldone check`."""


def check_server(
    url: str,
    *,
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

    Raises:
        CheckFailedError: the server does not pass, or cannot be checked.
        ValueError: the URL or the key is invalid, or a probe, rule, profile or field is unknown.
    """
    settings = CheckSettings(
        url=normalize_base_url(url),
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
            report = pool.submit(asyncio.run, run.check(settings)).result()
        except (CheckUnreachableError, run.NothingToCheckError) as error:
            raise CheckFailedError(f"welldone check: {error}") from None
    if check and not report.passed:
        raise CheckFailedError("\n".join(text.render_terminal(report, lambda text, _: text)))
    return report
