"""Decides whether OpenTelemetry spans are recorded: by the setting, and by the standard environment variables.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

import importlib.util
from collections.abc import Mapping
from urllib.parse import urlsplit

from welldone.config.settings import SettingsError, install_advice

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_EXPORTER = "OTEL_TRACES_EXPORTER"
_PROTOCOL = "http/protobuf"


def read_tracing(setting: str, environment: Mapping[str, str]) -> tuple[bool, list[str]]:
    """Return whether spans are recorded, and warnings.

    With `auto`, a problem is a warning: the variables may be those of a whole machine.

    Raises:
        SettingsError: tracing is required and impossible.
    """
    variables = {name: value for name, value in environment.items() if name.startswith("OTEL_") and value}
    endpoint = next((name for name in _ENDPOINTS if name in variables), None)
    is_required = setting == "on"
    is_disabled = variables.get("OTEL_SDK_DISABLED", "").lower() == "true" or variables.get(_EXPORTER) == "none"
    if setting == "off" or is_disabled or (endpoint is None and not is_required):
        return False, []
    if (problem := _problem(variables, endpoint)) is None:
        return True, []
    if is_required:
        raise SettingsError(f"--tracing on: {problem}")
    return False, [f"{endpoint} is set, but there will be no traces: {problem}; --tracing off hides this warning"]


def _problem(env: Mapping[str, str], endpoint: str | None) -> str | None:
    if not _is_installed():
        return f"OpenTelemetry is not installed: {install_advice('otel')}"
    if env.get(_EXPORTER, "otlp") != "otlp":
        return f"{_EXPORTER} should be otlp or none"
    protocol = next((name for name in _PROTOCOLS if name in env), None)
    if protocol is not None and env[protocol] != _PROTOCOL:
        return f"{protocol} should be {_PROTOCOL}, and the port that of OTLP over HTTP, usually 4318"
    if endpoint is not None:
        try:
            is_url = urlsplit(env[endpoint]).scheme in ("http", "https") and bool(urlsplit(env[endpoint]).hostname)
        except ValueError:
            is_url = False
        if not is_url:
            return f"{endpoint} should be a URL such as http://127.0.0.1:4318"
    return None


def _is_installed() -> bool:
    try:
        names = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
        return all(importlib.util.find_spec(name) is not None for name in names)
    except ModuleNotFoundError:  # a package above them is missing
        return False
