"""The tables `[scale]` of welldone.toml, and errors in them."""

from pathlib import Path

import pytest

from tests.table import table
from welldone.config.server import Config, EngineScale, FrontScale, ScaleSettings
from welldone.config.settings import RawSetting, SettingsError
from welldone.server.config import read_config

MODELS = """
[models.large]
command = ["vllm", "serve", "--port", "{port}"]

[models.small]
command = ["llama-server", "--port", "{port}"]
"""


def read(folder: Path, text: str) -> Config:
    file = folder / "welldone.toml"
    file.write_text(MODELS + text if text.startswith(("[", "\n")) else text + MODELS)
    return read_config({"config": RawSetting(str(file), "--config", folder)}, {}, folder=folder)


def test_the_default_is_one_replica_of_each(tmp_path: Path) -> None:
    scale = read(tmp_path, "").scale
    assert scale == ScaleSettings()
    assert (scale.front.min_replicas, scale.front.max_replicas, scale.front.port) == (1, 1, 0)
    assert scale.engine_of("large") == EngineScale()


def test_the_table_of_a_model_overrides_the_common_one(tmp_path: Path) -> None:
    scale = read(
        tmp_path,
        """
[scale]
upscale-delay-s = 1.5
[scale.front]
max_replicas = 4
port = 9000
[scale.engine]
num_gpus = 1
max_replicas = 3
sticky = "conversation"
[scale.engines.large]
num_gpus = 8
streams = 32
""",
    ).scale
    assert scale.upscale_delay_s == 1.5
    assert scale.front == FrontScale(max_replicas=4, port=9000)
    assert scale.engine_of("small") == EngineScale(num_gpus=1, max_replicas=3, sticky="conversation")
    assert scale.engine_of("large") == EngineScale(num_gpus=8, max_replicas=3, sticky="conversation", streams=32)


WRONG = {
    "[scale]\nup = 1": "scale has no setting 'up'",
    "[scale]\nlook_back_s = 0": "scale.look_back_s",
    "scale = 1": "scale",
    "[scale.front]\nnum_gpus = 1": "scale.front has no setting 'num_gpus'",
    "[scale.front]\nport = 70000": "scale.front.port",
    '[scale.front]\nmin_replicas = "two"': "scale.front.min_replicas",
    "[scale.front]\nmin_replicas = 3": "scale.front: min_replicas is more than max_replicas",
    "[scale.engine]\nmax_replicas = 0": "scale.engine.max_replicas",
    "[scale.engine]\nmin_replicas = 2\nmax_replicas = 1": "scale.engine: min_replicas is more than max_replicas",
    '[scale.engine]\nsticky = "always"': "scale.engine.sticky",
    "[scale.engines.lrage]\nnum_cpus = 1": "large",
    "[scale.engines.small]\nmin_replicas = 2": "scale.engines.small: min_replicas is more than max_replicas",
    "[scale.engines.small]\nnum_cpu = 2": "num_cpus",
    "[scale]\nengines = 1": "scale.engines",
    "[scale]\nfront = 1": "scale.front",
}


@table("text", WRONG)
def test_an_error_is_one_line_that_names_its_origin(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError) as error:
        read(tmp_path, text)
    message = str(error.value)
    assert WRONG[text] in message
    assert "\n" not in message
    assert "welldone.toml" in message


def test_limits_are_checked_after_merging_the_tables(tmp_path: Path) -> None:
    text = "[scale.engine]\nmax_replicas = 4\n[scale.engines.small]\nmin_replicas = 4"
    assert read(tmp_path, text).scale.engine_of("small").min_replicas == 4
