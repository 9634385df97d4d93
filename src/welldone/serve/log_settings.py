"""How the log is written, by the settings of a server."""

import logging
from collections.abc import Iterable
from typing import Literal, cast

from welldone.serve.log import LogHandler, LogStream
from welldone.serve.settings import ServeSettings

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def log_style(settings: ServeSettings) -> Literal["text", "json"]:
    """For people, or for programs."""
    return cast('Literal["text", "json"]', settings.log_format)


def log_level(settings: ServeSettings) -> int:
    """The least that is logged."""
    return logging.ERROR if settings.quiet else _LEVELS[settings.log_level]


def make_log_handler(settings: ServeSettings, secrets: Iterable[str], stream: LogStream | None = None) -> LogHandler:
    """The log, which has not begun."""
    return LogHandler(style=log_style(settings), level=log_level(settings), secrets=secrets, stream=stream)
