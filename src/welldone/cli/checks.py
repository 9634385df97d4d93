"""What the server needs is there: keys, certificates, files, programs. What is not is said in one line, at once."""

import os
import shutil
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

from welldone.cli import show
from welldone.cli.exits import UsageError
from welldone.engines import default
from welldone.engines.gguf import GgufError, read_metadata
from welldone.engines.names import route_problems
from welldone.engines.settings import ModelSettings
from welldone.engines.store import find_model_file
from welldone.serve.keys import MIN_KEY_LENGTH, ApiKeys, is_weak_key, make_key, read_key_file
from welldone.serve.origins import is_loopback
from welldone.serve.settings import Config


def find_api_keys(config: Config, warn: Callable[[str], None] = show.print_note) -> tuple[list[str], str | None]:
    """The keys without a name that clients may send, and the one that was made because there were none at all."""
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
    if any(is_weak_key(key) for key in (*keys, *(named.key for named in config.keys))):
        warn(f"an API key is shorter than {MIN_KEY_LENGTH} characters: good enough for this machine alone")
    if keys or config.keys or config.has_shared_keys or settings.no_api_key or is_local:
        return keys, None
    made = make_key()
    return [made], made


def check_files(config: Config, folder: Path) -> None:
    """A file or a program that is not there, or is another one than was meant, is a mistake in the command."""
    if config.server.ssl_cert_file is not None and config.server.ssl_key_file is not None:
        _check_tls(config.server.ssl_cert_file, config.server.ssl_key_file)
    for model in config.models:
        where = config.model_locations.get(model.name)
        for problem in _model_problems(model, folder):
            raise UsageError(problem if where is None else f"{where}: {problem}")
    if config.server.record is not None:
        _check_record_folder(config.server.record)


def check_routes(config: Config) -> None:
    """A route that leads nowhere is a mistake in the config file."""
    own = {name for model in config.models for name in (model.name, *model.aliases)}
    file = "" if config.server.config is None else f"{config.server.config.name}: "
    for problem in route_problems(config.routes, config.upstreams, own):
        raise UsageError(f"{file}{problem}")


def _check_record_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)  # what is recorded may be private
    except OSError as error:
        raise UsageError(
            f"cannot make the folder {show.printable_name(str(folder))}, which --record names: {show.error_text(error)}"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write into {show.printable_name(str(folder))}, which --record names")


def _model_problems(model: ModelSettings, folder: Path) -> Iterator[str]:
    if model.command:
        if shutil.which(model.command[0]) is None:
            yield f"there is no program {show.printable_name(model.command[0])}, which its command names"
        return
    yield from _model_file_problems(model.file, folder)
    beside = [("--lora", Path(path)) for path in model.lora]
    beside += [("--mmproj", path) for path in (model.mmproj,) if path is not None]
    beside += [("--chat-template-file", path) for path in (model.chat_template_file,) if path is not None]
    for flag, path in beside:
        if not _can_read(path):
            yield f"cannot read {show.printable_name(str(path))}, which {flag} names"


def _model_file_problems(file: Path | None, folder: Path) -> Iterator[str]:
    if file is None or (default.is_builtin_name(str(file)) and not file.is_file()):
        return  # the built-in model is fetched where it is not there
    path = file if file.is_file() else find_model_file(folder, str(file))
    if path is None:
        yield (
            f"there is no model {show.printable_name(str(file))}; welldone models lists those that are there, "
            "welldone pull fetches one"
        )
        return
    try:
        read_metadata(path)
    except GgufError as error:
        yield f"{show.printable_name(str(path))} {error}"


def _can_read(path: Path) -> bool:
    return path.is_file() and os.access(path, os.R_OK)


class _EncryptedKeyError(Exception):
    """A key wants a passphrase."""


def _check_tls(certificate: Path, key: Path) -> None:
    """Load both as the server will; the message names the file that is wrong."""
    for path in (certificate, key):
        if not _can_read(path):
            raise UsageError(f"cannot read {show.printable_name(str(path))}, which TLS needs")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(certificate)
    except ssl.SSLError:
        raise UsageError(f"{show.printable_name(str(certificate))} holds no certificate as PEM") from None
    try:
        context.load_cert_chain(certificate, key, password=_refuse_passphrase)
    except _EncryptedKeyError:
        raise UsageError(
            f"the key in {show.printable_name(str(key))} is encrypted, and nobody may be there to type its passphrase; "
            "write it without one: openssl pkey -in KEY -out NEW_KEY"
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = f"does not belong to the certificate in {show.printable_name(str(certificate))}"
        else:
            why = "is no private key as PEM that can be used"
        raise UsageError(f"the key in {show.printable_name(str(key))} {why}") from None


def _refuse_passphrase() -> str:
    """OpenSSL would ask the terminal."""
    raise _EncryptedKeyError
