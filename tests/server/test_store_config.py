"""The setting `limits.store`: its origins, its validation, and that it stays secret."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.config.public_settings import public_config
from tests.table import table
from welldone.config.server import Config
from welldone.config.settings import RawSetting, SettingsError, install_advice
from welldone.server.config import invalid_store_url_reason, read_config

URL = "redis://user:canary-password@127.0.0.1:6379/1"


def read(folder: Path, *, flag: str = "", toml: str = "", environment: dict[str, str] | None = None) -> Config:
    if toml:
        (folder / "welldone.toml").write_text(toml)
    flags = {"store": RawSetting(flag, "--limits-store", folder)} if flag else {}
    return read_config(flags, environment or {}, folder=folder)


@table("url", [URL, "rediss://h/0", "redis://h", "redis://[::1]:1/", "unix:///run/redis.sock"])
def test_the_store_is_read_from_flag_environment_or_file(url: str, tmp_path: Path) -> None:
    assert read(tmp_path).limits.store is None
    assert read(tmp_path, flag=url).limits.store == url
    assert read(tmp_path, environment={"WELLDONE_LIMITS_STORE": url}).limits.store == url
    assert read(tmp_path, flag="env:MINE", environment={"MINE": url}).limits.store == url
    assert read(tmp_path, toml=f'[limits]\nstore = "{url}"\n').limits.store == url


@table(
    "url",
    [
        "canary",
        "http://canary@host/0",
        "redis://",
        "redis://:canary@/0",
        "redis://canary@host:99999/0",
        "redis://:can/ary@host:1/0",
        "redis://canary@host/zero",
        "redis://canary@host/0?db=1",
        "redis://canary@host/0#1",
        "unix://",
        "redis://[canary/0",
    ],
)
def test_an_invalid_url_is_one_line_without_the_url(url: str, tmp_path: Path) -> None:
    assert invalid_store_url_reason(url)
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, flag=url)
    assert str(caught.value).startswith("--limits-store ")
    assert "canary" not in str(caught.value)


def test_the_table_has_no_other_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"limits has no setting 'stor' \(did you mean 'store'"):
        read(tmp_path, toml="[limits]\nstor = 'x'")


def test_the_url_is_not_shown(tmp_path: Path) -> None:
    config = read(tmp_path, flag="redis://user:canary%2Dpassword@127.0.0.1/0")
    assert "canary" not in repr(config)
    assert "canary" not in str(public_config(config))
    assert public_config(config)["limits"] == {"store": "set"}
    assert {"canary%2Dpassword", "canary-password"} <= set(config.secrets)


def test_without_the_package_the_error_says_how_to_install_it() -> None:
    program = (
        "import sys; sys.modules['redis'] = None\n"
        "from welldone.cli.main import run; sys.exit(run(['serve', '--limits-store', 'redis://h/0']))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 2
    assert ended.stderr == f"--limits-store needs the package redis: {install_advice('redis')}\n"


def test_a_store_requires_keys_unless_no_api_key_is_set(tmp_path: Path) -> None:
    assert read(tmp_path, flag=URL).has_stored_keys
    assert not read(tmp_path).has_stored_keys
    assert not read(tmp_path, toml="[server]\nno_api_key = true", flag=URL).has_stored_keys
