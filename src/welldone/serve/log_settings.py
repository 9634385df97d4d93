"""How the log is written, by the settings of a server."""

import logging
from collections.abc import Iterable
from typing import Literal, cast

from welldone.serve.log import Log, Stream
from welldone.serve.settings import ServeSettings

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def style_of(settings: ServeSettings) -> Literal["text", "json"]:
    """For people, or for programs."""
    return cast('Literal["text", "json"]', settings.log_format)


def level_of(settings: ServeSettings) -> int:
    """The least that is logged."""
    return logging.ERROR if settings.quiet else _LEVELS[settings.log_level]


def log_of(settings: ServeSettings, secrets: Iterable[str], stream: Stream | None = None) -> Log:
    """The log, which has not begun."""
    return Log(style=style_of(settings), level=level_of(settings), secrets=secrets, stream=stream)
