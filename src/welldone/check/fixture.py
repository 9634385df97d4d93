"""The check as one call, for who has no event loop or has one that is busy. The pytest plugin hands it out."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from welldone.check.again import KEY_VARIABLE
from welldone.check.naming import endpoint_named, members_given, probes_named, profile_named, rules_named
from welldone.check.report import Report
from welldone.check.reports import terminal
from welldone.check.run import NothingError, UnreachableError, check
from welldone.check.settings import CheckSettings
from welldone.net.address import base_url


class NotPassedError(Exception):
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
        url=base_url(url),
        model=model,
        key=api_key or os.environ.get(KEY_VARIABLE) or None,
        endpoint=endpoint_named(endpoint),
        only=probes_named(only, endpoint),
        skip=probes_named(skip, endpoint),
        rules=rules_named(rules),
        profile=profile_named(profile),
        is_strict=strict,
        known=None if known is None else frozenset(rules_named(known)),
        extra=members_given(extra or {}),
    )
    report = _run(settings)
    if check and not report.passed:
        raise NotPassedError("\n".join(terminal.lines(report, lambda text, _: text)))
    return report


def _run(settings: CheckSettings) -> Report:
    """In a thread, and so in a loop of its own: the caller may stand in one that runs."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:
            return pool.submit(asyncio.run, check(settings)).result()
        except (UnreachableError, NothingError) as error:
            raise NotPassedError(f"welldone check: {error}") from None
