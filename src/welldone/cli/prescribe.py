"""`welldone check --prescribe`: the settings of a gateway that make the server right, tried in this process."""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from welldone.check.discovery import CheckUnreachableError
from welldone.check.prescription import compare, prescribe
from welldone.check.report import Prescription, Report
from welldone.check.run import NothingToCheckError, ProgressCallback, check
from welldone.check.settings import CheckSettings
from welldone.config.server import CONFIG_FILE_NAME
from welldone.config.settings import RawSetting, SettingsError
from welldone.server.config import read_config
from welldone.server.observe.log import LOGGER
from welldone.server.server import Server

_API_PATHS = {"gemini": "/v1beta"}


async def add_prescription(report: Report, settings: CheckSettings, on_progress: ProgressCallback) -> Report:
    """Return the report with a prescription, and the result of a check through a gateway with these settings."""
    toml, variables = prescribe(report, settings)
    try:
        prescription = compare(
            toml, report, await _check_through_gateway(toml, variables, report, settings, on_progress)
        )
    except asyncio.CancelledError:
        prescription = Prescription(toml=toml, problem="interrupted")
    except (CheckUnreachableError, NothingToCheckError, SettingsError, OSError) as error:
        prescription = Prescription(toml=toml, problem=settings.secrets.redact(str(error)))
    return msgspec.structs.replace(report, prescription=prescription)


async def _check_through_gateway(
    toml: str, variables: Mapping[str, str], report: Report, settings: CheckSettings, on_progress: ProgressCallback
) -> Report:
    LOGGER.addHandler(logging.NullHandler())  # else its warnings are printed
    key = None if settings.key is None else secrets.token_urlsafe()
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / CONFIG_FILE_NAME).write_text(toml, "utf-8")
        config = read_config({"port": RawSetting("0", "--port", folder)}, variables, folder=folder)
        server = Server(config, keys=() if key is None else (key,), folder=folder, environment=variables)
        await server.start()
        try:
            await server.upstreams.wait_until_probed(settings.timeouts.reply_s)
            own = msgspec.structs.replace(
                settings,
                url=f"http://127.0.0.1:{server.port}{_API_PATHS.get(settings.endpoint, '/v1')}",
                model=report.model,
                key=key,
                headers=(),
                ca_file=None,
                is_verified=True,
                record=None,
            )
            return await check(own, on_progress=on_progress)
        finally:
            await server.stop()
