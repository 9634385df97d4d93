"""The built-in model: its names, and its file."""

from pathlib import Path

import msgspec
import pytest

from tests.table import table
from welldone.config import builtin_model
from welldone.config.builtin_model import DEFAULT_MODEL
from welldone.engines.models.gguf import read_metadata
from welldone.engines.models.install import file_sha256


@table("name", ["default", DEFAULT_MODEL.name, *DEFAULT_MODEL.aliases])
def test_the_builtin_model_has_several_names(name: str) -> None:
    assert builtin_model.is_builtin_name(name)


@table("name", ["", "Default", "../default", "smollm2", DEFAULT_MODEL.file_name])
def test_other_names_are_not_the_builtin_models(name: str) -> None:
    assert not builtin_model.is_builtin_name(name)


@pytest.mark.parametrize(("size", "is_found"), [(10, True), (9, False), (0, False)])
def test_the_builtin_model_is_found_if_its_size_is_right(size: int, is_found: bool, tmp_path: Path) -> None:
    small = msgspec.structs.replace(DEFAULT_MODEL, size_bytes=10)
    path = tmp_path / DEFAULT_MODEL.file_name
    path.write_bytes(bytes(size))
    assert builtin_model.find_builtin(tmp_path, small) == (path if is_found else None)


def test_without_the_models_folder_the_builtin_model_is_not_found(tmp_path: Path) -> None:
    assert builtin_model.find_builtin(tmp_path / "none") is None
    (tmp_path / DEFAULT_MODEL.file_name).mkdir()
    assert builtin_model.find_builtin(tmp_path) is None


def test_the_description_of_the_builtin_model_matches_its_file(default_model: Path) -> None:
    facts = read_metadata(default_model)
    assert file_sha256(default_model) == DEFAULT_MODEL.sha256
    assert (facts.size_bytes, facts.parameters) == (DEFAULT_MODEL.size_bytes, DEFAULT_MODEL.parameters)
    assert (facts.context_length, facts.file_type) == (DEFAULT_MODEL.context_length, DEFAULT_MODEL.quantisation)
