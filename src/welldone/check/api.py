"""The check as one call, for who has no event loop or has one that is busy. The pytest plugin hands it out."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from welldone.check.discovery import CheckUnreachableError
from welldone.check.report import Report
from welldone.check.reports import text
from welldone.check.run import NothingToCheckError, check
from welldone.check.selection import (
    parse_endpoint,
    parse_extra_members,
    parse_probe_names,
    parse_profile,
    parse_rule_ids,
)
from welldone.check.settings import CheckSettings
from welldone.http.address import normalize_base_url
from welldone.http.redaction import API_KEY_VARIABLE


class CheckFailedError(Exception):
    """The server does not pass, or cannot be checked. The message is what `welldone check` would show."""


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
    """The report on the server at `url`. `known` are rules that may be broken; without `check`, any may.

    Raises:
        NotPassedError: the server does not pass, or cannot be checked.
        ValueError: the URL or the key cannot be used, or something is named that is not there.
    """
    settings = CheckSettings(
        url=normalize_base_url(url),
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
    report = _run_in_thread(settings)
    if check and not report.passed:
        raise CheckFailedError("\n".join(text.render_terminal(report, lambda text, _: text)))
    return report


def _run_in_thread(settings: CheckSettings) -> Report:
    """In a thread, and so in a loop of its own: the caller may stand in one that runs."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:
            return pool.submit(asyncio.run, check(settings)).result()
        except (CheckUnreachableError, NothingToCheckError) as error:
            raise CheckFailedError(f"welldone check: {error}") from None
