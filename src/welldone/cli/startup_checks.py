"""Checks of the settings before a start or a reload: keys, certificates, files, programs.

The first problem is a `UsageError` of one line.
"""

import os
import shutil
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

from welldone.cli import ui
from welldone.cli.ui import UsageError
from welldone.config.model import ModelSettings
from welldone.config.server import Config
from welldone.engines.builds import choose_engine
from welldone.engines.errors import EngineError
from welldone.engines.models.gguf import GgufError, read_metadata
from welldone.engines.models.pull import needs_download
from welldone.engines.models.repository import find_configured_model
from welldone.engines.speculation import with_speculation
from welldone.gateway.routing import route_problems
from welldone.http.redaction import MIN_KEY_LENGTH, is_weak_key
from welldone.server.access.key_file import KeyFileError, permission_warning, read_entries
from welldone.server.access.keys import ApiKeys, make_key, read_key_file
from welldone.server.access.origins import is_loopback


def find_api_keys(config: Config, warn: Callable[[str], None] = ui.print_note) -> tuple[list[str], str | None]:
    """Return the API keys without a name, and the generated key if the server is public and has no key at all."""
    settings = config.server
    keys = list(settings.api_keys)
    is_local = is_loopback(settings.host)
    if settings.api_key_file is not None:
        try:
            file = read_key_file(settings.api_key_file, allows_weak=is_local)
            keys += file.keys
            ApiKeys(keys, config.keys)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if file.warning is not None:
            warn(file.warning)
    if settings.keys_file is not None:
        _check_key_file(settings.keys_file, config, warn)
    if any(is_weak_key(key) for key in (*keys, *(named.key for named in config.keys))):
        warn(f"an API key is shorter than {MIN_KEY_LENGTH} characters: use it on this machine only")
    if keys or config.keys or config.has_stored_keys or settings.no_api_key or is_local:
        return keys, None
    made = make_key()
    return [made], made


def _check_key_file(path: Path, config: Config, warn: Callable[[str], None]) -> None:
    try:
        names = {key.name for key in read_entries(path).values()}
    except KeyFileError as error:
        raise UsageError(str(error)) from None
    if taken := sorted(names & {key.name for key in config.keys}):
        raise UsageError(f"{path} and the settings both have a key {taken[0]}: rename one of them")
    if warning := permission_warning(path):
        warn(warning)


def check_files(config: Config, models: Path) -> None:
    """Raise `UsageError` if a file or a program from the settings is missing or unusable."""
    if config.server.ssl_cert_file is not None and config.server.ssl_key_file is not None:
        _check_tls(config.server.ssl_cert_file, config.server.ssl_key_file)
    for model in config.models:
        where = config.model_locations.get(model.name)
        for problem in _model_problems(model, models):
            raise UsageError(problem if where is None else f"{where}: {problem}")
    if (folder := config.server.record) is not None:
        try:
            folder.mkdir(mode=0o700, exist_ok=True)  # recordings may hold private data
        except OSError as error:
            name = ui.printable_name(folder)
            raise UsageError(f"cannot create the folder {name} for --record: {ui.error_text(error)}") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError(f"cannot write into {ui.printable_name(folder)} (--record): permission denied")


def check_routes(config: Config) -> None:
    """Raise `UsageError` if a route has no target."""
    own = {name for model in config.models for name in (model.name, *model.aliases)}
    file = "" if config.server.config is None else f"{config.server.config.name}: "
    for problem in route_problems(config.routes, config.upstreams, own):
        raise UsageError(f"{file}{problem}")


def _model_problems(model: ModelSettings, folder: Path) -> Iterator[str]:
    if model.command:
        if shutil.which(model.command[0]) is None:
            yield f"cannot find the program {ui.printable_name(model.command[0])} of its command"
        return
    path = find_configured_model(folder, model)
    if path is None and not needs_download(folder, model):
        yield (
            f"there is no model {ui.printable_name(str(model.file))}; welldone models lists those that are there, "
            "welldone pull downloads one"
        )
        return
    if path is not None:
        try:
            read_metadata(path)
        except GgufError as error:
            yield f"{ui.printable_name(path)} {error}"
    try:
        choose_engine(model.engine, os.environ)
    except EngineError as error:
        yield f"{error.message} (--engine)"
    try:
        with_speculation(model, path, folder)
    except EngineError as error:
        yield error.message
    files = [("--mmproj", model.mmproj), ("--chat-template-file", model.chat_template_file)]
    for flag, path in (*(("--lora", Path(path)) for path in model.lora), *files):
        if path is not None and not _can_read(path):
            yield f"cannot read {ui.printable_name(path)} ({flag})"


def _can_read(path: Path) -> bool:
    return path.is_file() and os.access(path, os.R_OK)


class _EncryptedKeyError(Exception):
    """The private key needs a passphrase."""


def _check_tls(certificate: Path, key: Path) -> None:
    """Load certificate and key as the server does. The error names the file at fault."""
    for path in (certificate, key):
        if not _can_read(path):
            raise UsageError(f"cannot read {ui.printable_name(path)}, which TLS needs")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(certificate)
    except ssl.SSLError:
        raise UsageError(f"{ui.printable_name(certificate)} does not hold a certificate in PEM form") from None
    try:
        context.load_cert_chain(certificate, key, password=_refuse_passphrase)
    except _EncryptedKeyError:
        raise UsageError(
            f"the key in {ui.printable_name(key)} is encrypted, and a server cannot ask for its passphrase; "
            "decrypt it: openssl pkey -in KEY -out NEW_KEY"
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"does not belong to the certificate in {ui.printable_name(certificate)}"
        else:
            problem = "is not a usable private key in PEM form"
        raise UsageError(f"the key in {ui.printable_name(key)} {problem}") from None


def _refuse_passphrase() -> str:
    # Without this callback OpenSSL would read the passphrase from the terminal.
    raise _EncryptedKeyError
