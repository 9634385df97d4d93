"""Reads the configuration of a running server again, and checks it as at the start."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from welldone.cli.startup_checks import check_startup, find_api_keys
from welldone.cli.ui import UsageError
from welldone.config.server import Config
from welldone.engines.models.pull import needs_download
from welldone.http.redaction import MIN_KEY_LENGTH, is_weak_key
from welldone.server.access.origins import is_loopback
from welldone.server.observe import log
from welldone.server.observe.log import FieldValue
from welldone.server.reload import NewConfig, ReloadResult, describe_changes, keep_fixed_settings


class ConfigReader:
    """The present configuration, and how to read the next one.

    `read` reads flags, environment and file, and raises `UsageError`. `folder` has the models.
    """

    def __init__(
        self,
        config: Config,
        keys: Sequence[str],
        *,
        generated_key: str | None,
        folder: Path,
        read: Callable[[], Config],
    ) -> None:
        self.config: Config = config
        self.keys: tuple[str, ...] = tuple(keys)
        """The API keys without a name."""
        self.generated_key: str | None = generated_key
        self.on_commit: Callable[[], None] = lambda: None
        self._folder = folder
        self._read = read

    def prepare(self) -> tuple[ReloadResult, NewConfig | None]:
        """Read and check the configuration. None: there is nothing to apply. Blocks; changes nothing."""
        path = self.config.server.config
        file = None if path is None else str(path)
        try:
            config, keys, warnings = self._read_checked()
        except UsageError as error:
            return ReloadResult(outcome="failed", file=file, error=str(error)), None
        file = None if config.server.config is None else str(config.server.config)
        changes = describe_changes(self.config, config, self.keys, keys)
        is_same = keys == self.keys and dataclasses.replace(config, warnings=self.config.warnings) == self.config
        outcome = ReloadResult(
            outcome="unchanged" if is_same else "applied", file=file, changes=changes, warnings=warnings
        )
        return outcome, NewConfig(config=config, keys=keys)

    def commit(self, new: NewConfig) -> None:
        """Make a configuration the present one."""
        self.config, self.keys = new.config, new.keys
        self.on_commit()

    def _read_checked(self) -> tuple[Config, tuple[str, ...], tuple[str, ...]]:
        before = self.config
        path = before.server.config
        if path is not None and not path.exists():  # else the defaults would replace the file of the working directory
            raise UsageError(f"cannot read {path}: no such file or directory")
        config, warnings = keep_fixed_settings(before, self._read())
        warnings += config.warnings
        keys, generated = find_api_keys(config, warnings.append)
        if generated is not None:
            if self.generated_key is None:
                raise UsageError("no API key is left, and other machines can reach this server: add one, or restart it")
            keys = [self.generated_key]
        host = config.server.host
        if not is_loopback(host) and any(map(is_weak_key, (*keys, *(named.key for named in config.keys)))):
            raise UsageError(f"an API key is shorter than {MIN_KEY_LENGTH} characters, and {host} is public")
        if config.server.workers > 1 and config.models:
            raise UsageError("local models are not supported with --workers: remove them, or restart the server")
        for model in config.models:
            if needs_download(self._folder, model):
                source = "default" if model.hf_repo is None else f"hf:{model.hf_repo}"
                raise UsageError(f"the model {model.name} is not downloaded: run welldone pull {source} first")
        check_startup(config, self._folder)
        return config, tuple(keys), tuple(warnings)


def log_reload(result: ReloadResult) -> None:
    """Log the result of a reload: what has changed, or why nothing has."""
    fields: dict[str, FieldValue] = {} if result.file is None else {"file": result.file}
    for text in result.warnings:
        log.event(logging.WARNING, text, fields)
    if result.error is not None:
        log.event(logging.ERROR, f"the configuration is unchanged: {result.error}", fields)
    elif result.outcome == "unchanged":
        log.event(logging.INFO, "the configuration was read again and is unchanged", fields)
    else:
        log.event(logging.INFO, "the configuration was reloaded", {**fields, "changes": "; ".join(result.changes)})
