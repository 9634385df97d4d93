"""Checks of the configuration before a start, a reload and for `--check-config`, and what a reload reads.

The checks of keys, certificates, files and programs need no network and change nothing. Each problem is one line.
"""

import dataclasses
import logging
import os
import shutil
import ssl
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from welldone.cli import ui
from welldone.cli.main import missing_dependency
from welldone.cli.ui import UsageError
from welldone.config.model import ModelSettings
from welldone.config.server import Config
from welldone.engines.builds import WHEEL_PACKAGE, choose_engine
from welldone.engines.errors import EngineError
from welldone.engines.models.gguf import GgufError, read_metadata
from welldone.engines.models.install import PullError
from welldone.engines.models.pull import check_can_download, needs_download
from welldone.engines.models.repository import find_configured_model
from welldone.engines.models.store import split_file_names
from welldone.engines.speculation import with_speculation
from welldone.gateway.routing import route_problems
from welldone.http.redaction import MIN_KEY_LENGTH, is_weak_key
from welldone.server.access.key_storage import KeyFileError, permission_warning, read_entries
from welldone.server.access.keys import ApiKeys, make_key, read_key_file
from welldone.server.access.origins import is_loopback
from welldone.server.observe import log
from welldone.server.observe.log import FieldValue
from welldone.server.reload import NewConfig, ReloadResult, describe_changes, keep_fixed_settings


def find_api_keys(config: Config, warn: Callable[[str], None] = ui.print_note) -> tuple[list[str], str | None]:
    """Return the API keys without a name, and the generated key if the server is public and has no key at all."""
    settings = config.server
    keys = list(settings.api_keys)
    is_local = is_loopback(settings.host)
    if settings.api_key_file is not None:
        with ui.usage_errors(ValueError):
            file_keys, warning = read_key_file(settings.api_key_file, allows_weak=is_local)
            keys += file_keys
            ApiKeys(keys, config.keys)
        if warning is not None:
            warn(warning)
    if settings.keys_file is not None:
        _check_key_file(settings.keys_file, config, warn)
    if any(is_weak_key(key) for key in (*keys, *(named.key for named in config.keys))):
        warn(f"an API key is shorter than {MIN_KEY_LENGTH} characters: use it on this machine only")
    if keys or config.keys or config.has_stored_keys or settings.no_api_key or is_local:
        return keys, None
    made = make_key()
    return [made], made


def _check_key_file(path: Path, config: Config, warn: Callable[[str], None]) -> None:
    with ui.usage_errors(KeyFileError):
        names = {key.name for key in read_entries(path).values()}
    if taken := sorted(names & {key.name for key in config.keys}):
        raise UsageError(f"{path} and the settings both have a key {taken[0]}: rename one of them")
    if warning := permission_warning(path):
        warn(warning)


def check_startup(config: Config, models: Path) -> None:
    """Raise `UsageError` for the first of `startup_problems`."""
    for problem in startup_problems(config, models):
        raise UsageError(problem)


def startup_problems(config: Config, models: Path) -> Iterator[str]:
    """Yield what is wrong with the files, the programs and the routes of the settings."""
    settings = config.server
    if settings.ssl_cert_file is not None and settings.ssl_key_file is not None:
        yield from _tls_problems(settings.ssl_cert_file, settings.ssl_key_file)
    for model in config.models:
        where = config.model_locations.get(model.name)
        for problem in _model_problems(model, models):
            yield problem if where is None else f"{where}: {problem}"
    if settings.record is not None:
        yield from _record_problems(settings.record)
    own = {name for model in config.models for name in (model.name, *model.aliases)}
    file = "" if settings.config is None else f"{settings.config.name}: "
    for problem in route_problems(config.routes, config.upstreams, own):
        yield f"{file}{problem}"


def _model_problems(model: ModelSettings, folder: Path) -> Iterator[str]:
    if model.command:
        if shutil.which(model.command[0]) is None:
            yield f"cannot find the program {ui.printable_name(model.command[0])} of its command"
        return
    path = find_configured_model(folder, model)
    if path is not None:
        yield from _gguf_problems(path)
    elif not needs_download(folder, model):
        yield (
            f"there is no model {ui.printable_name(str(model.file))}; welldone models lists those that are there, "
            "welldone pull downloads one"
        )
        return
    try:
        if path is None:
            check_can_download(model)
        if choose_engine(model.engine, os.environ).program is None and find_spec(WHEEL_PACKAGE) is None:
            yield missing_dependency("serve", WHEEL_PACKAGE)
    except PullError as error:
        yield str(error)
    except EngineError as error:
        yield f"{error.message} (--engine)"
    try:
        with_speculation(model, path, folder)
    except EngineError as error:
        yield error.message
    for flag, file in (*(("--lora", Path(file)) for file in model.lora), ("--mmproj", model.mmproj)):
        if file is not None:
            yield from (f"{problem} ({flag})" for problem in _gguf_problems(file))
    template = model.chat_template_file
    if template is not None and not _can_read(template):
        yield f"cannot read {ui.printable_name(template)} (--chat-template-file)"


def _gguf_problems(path: Path) -> Iterator[str]:
    missing = [name for name in split_file_names(path.name) if not path.with_name(name).is_file()]
    for name in missing:
        yield f"cannot read {ui.printable_name(path.with_name(name))}"
    if not missing:
        try:
            read_metadata(path)
        except GgufError as error:
            yield f"{ui.printable_name(path)} {error}"


def _record_problems(folder: Path) -> Iterator[str]:
    """The folder is created at the start, in one that exists."""
    name = ui.printable_name(folder)
    if folder.is_dir():
        if not os.access(folder, os.W_OK | os.X_OK):
            yield f"cannot write into {name} (--record): permission denied"
    elif folder.exists():
        yield f"cannot create the folder {name} for --record: file exists"
    elif not folder.parent.is_dir():
        yield f"cannot create the folder {name} for --record: no such file or directory"
    elif not os.access(folder.parent, os.W_OK | os.X_OK):
        yield f"cannot create the folder {name} for --record: permission denied"


def _can_read(path: Path) -> bool:
    return path.is_file() and os.access(path, os.R_OK)


class _EncryptedKeyError(Exception):
    """The private key needs a passphrase."""


def _tls_problems(certificate: Path, key: Path) -> Iterator[str]:
    """Load certificate and key as the server does. The problem names the file at fault."""
    unreadable = [path for path in (certificate, key) if not _can_read(path)]
    for path in unreadable:
        yield f"cannot read {ui.printable_name(path)}, which TLS needs"
    if unreadable:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(certificate)
    except ssl.SSLError:
        yield f"{ui.printable_name(certificate)} does not hold a certificate in PEM form"
        return
    try:
        context.load_cert_chain(certificate, key, password=_refuse_passphrase)
    except _EncryptedKeyError:
        yield (
            f"the key in {ui.printable_name(key)} is encrypted, and a server cannot ask for its passphrase; "
            "decrypt it: openssl pkey -in KEY -out NEW_KEY"
        )
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"does not belong to the certificate in {ui.printable_name(certificate)}"
        else:
            problem = "is not a usable private key in PEM form"
        yield f"the key in {ui.printable_name(key)} {problem}"


def _refuse_passphrase() -> str:
    # Without this callback OpenSSL would read the passphrase from the terminal.
    raise _EncryptedKeyError


# ---- reload


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
