"""`welldone check --prescribe`: the settings of a gateway that make the server right, tried in this process."""

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from welldone.check.discovery import CheckUnreachableError
from welldone.check.prescription import compare, prescribe, useless_settings
from welldone.check.report import Prescription, Report
from welldone.check.run import NothingToCheckError, ProgressCallback, check
from welldone.check.settings import CheckSettings
from welldone.config.server import CONFIG_FILE_NAME
from welldone.config.settings import RawSetting, SettingsError
from welldone.server.config import read_config
from welldone.server.observe.log import LOGGER
from welldone.server.server import Server

_FLAGS = {"port": "0", "cors_origins": "*"}  # the second: to judge what the gateway answers to browsers


async def add_prescription(report: Report, settings: CheckSettings, on_progress: ProgressCallback) -> Report:
    """Return the report with a prescription, and the result of a check through a gateway with these settings."""
    toml, variables, rules = prescribe(report, settings)
    try:
        after = await _check_through_gateway(toml, variables, report, settings, on_progress)
        if useless := useless_settings(rules, report, after):
            toml, variables, _ = prescribe(report, settings, useless)
            after = await _check_through_gateway(toml, variables, report, settings, on_progress)
        if settings.endpoint != "chat" and after.findings_by_rule:  # answers made from its chat may be right
            translated = [line for line in toml if not line.startswith("speaks = ")]
            with suppress(CheckUnreachableError, NothingToCheckError):  # the server may have no chat
                other = await _check_through_gateway(translated, variables, report, settings, on_progress)
                if other.failed_answers == 0 and len(other.findings_by_rule) < len(after.findings_by_rule):
                    toml, after = translated, other
        prescription = compare(toml, report, after)
    except asyncio.CancelledError:
        prescription = Prescription(toml=tuple(toml), problem="interrupted")
    except (CheckUnreachableError, NothingToCheckError, SettingsError, OSError) as error:
        prescription = Prescription(toml=tuple(toml), problem=settings.secrets.redact(str(error)))
    return msgspec.structs.replace(report, prescription=prescription)


async def _check_through_gateway(
    toml: Sequence[str],
    variables: Mapping[str, str],
    report: Report,
    settings: CheckSettings,
    on_progress: ProgressCallback,
) -> Report:
    LOGGER.addHandler(logging.NullHandler())  # else its warnings are printed
    key = None if settings.key is None else secrets.token_urlsafe()
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / CONFIG_FILE_NAME).write_text("\n".join(toml), "utf-8")
        flags = {name: RawSetting(value, name, folder) for name, value in _FLAGS.items()}
        config = read_config(flags, variables, folder=folder)
        server = Server(config, keys=() if key is None else (key,), folder=folder, environment=variables)
        await server.start()
        try:
            await server.upstreams.wait_until_probed(settings.timeouts.reply_s)
            url = f"http://127.0.0.1:{server.port}/{'v1beta' if settings.endpoint == 'gemini' else 'v1'}"
            plain = msgspec.structs.replace(settings, headers=(), ca_file=None, is_verified=True, record=None)
            own = msgspec.structs.replace(plain, url=url, model=report.model, key=key)
            return await check(own, on_progress=on_progress)
        finally:
            await server.stop()
