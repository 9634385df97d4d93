"""The setting `--tracing` and the standard environment variables of OpenTelemetry."""

import sys
from pathlib import Path

import pytest

from tests.table import table
from welldone.config.server import Config
from welldone.config.settings import RawSetting, SettingsError, install_advice
from welldone.server.config import read_config

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
TRACES_ENDPOINT = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector/v1/traces"}
MISSING = f"OpenTelemetry is not installed: {install_advice('otel')}"


def read(folder: Path, setting: str | None, environment: dict[str, str]) -> Config:
    flags = {} if setting is None else {"tracing": RawSetting(setting, "--tracing", folder)}
    return read_config(flags, environment, folder=folder)


@table(
    "setting, environment, expected",
    [
        (None, {}, "off"),
        (None, ENDPOINT, "on"),
        (None, TRACES_ENDPOINT, "on"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, "off"),
        (None, {"OTEL_SERVICE_NAME": "gate"}, "off"),
        (None, {**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, "off"),
        (None, {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, "off"),
        (None, {**ENDPOINT, "OTEL_TRACES_EXPORTER": "otlp"}, "on"),
        (None, {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "on"),
        ("auto", ENDPOINT, "on"),
        ("on", {}, "on"),
        ("on", {"OTEL_SDK_DISABLED": "true"}, "off"),
        ("off", ENDPOINT, "off"),
    ],
)
def test_the_setting_and_the_environment_decide(
    tmp_path: Path, setting: str | None, environment: dict[str, str], expected: str
) -> None:
    config = read(tmp_path, setting, environment)
    assert (config.is_traced, config.warnings) == (expected == "on", ())


@table(
    "environment, problem",
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT should be a URL such as"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://[x"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT should be a URL"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL should be http/protobuf"),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER should be otlp or none"),
    ],
)
def test_a_problem_is_a_warning_or_if_tracing_is_required_an_error(
    tmp_path: Path, environment: dict[str, str], problem: str
) -> None:
    config = read(tmp_path, None, environment)
    assert not config.is_traced
    (warning,) = config.warnings
    assert problem in warning
    assert read(tmp_path, "off", environment).warnings == ()
    with pytest.raises(SettingsError, match="--tracing on: ") as caught:
        read(tmp_path, "on", environment)
    assert problem in str(caught.value)


@table("module", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"])
def test_a_missing_package_is_one_line_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    with monkeypatch.context() as patch:
        for name in [one for one in sys.modules if one.startswith("opentelemetry")]:
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, module, None)
        with pytest.raises(SettingsError) as caught:
            read(tmp_path, "on", {})
        assert str(caught.value) == f"--tracing on: {MISSING}"
        (warning,) = read(tmp_path, None, ENDPOINT).warnings
        assert MISSING in warning
        assert read(tmp_path, None, {}).warnings == ()
