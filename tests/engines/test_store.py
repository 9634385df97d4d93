"""The models folder: names, files and origins."""

from pathlib import Path

import pytest

from tests.engines import files
from tests.table import table
from welldone.config.builtin_model import DEFAULT_MODEL
from welldone.engines.models import store
from welldone.engines.models.store import ModelOrigin

NAMES = ["a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "c-00001-of-00003.gguf"]
OTHERS = ["a.gguf.json", "d.gguf.part", ".e.gguf", "f.bin", "g.GGUF.txt"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with models and other files."""
    for number, name in enumerate(NAMES):
        (tmp_path / name).write_bytes(files.model(100 + number))
    for name in OTHERS:
        (tmp_path / name).write_bytes(b"{}")
    (tmp_path / "h.gguf").mkdir()
    return tmp_path


@table(
    ("environment", "expected"),
    [
        ({"WELLDONE_HOME": "/data/w", "XDG_CACHE_HOME": "/cache"}, "/data/w/models"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/welldone/models"),
        ({"XDG_CACHE_HOME": "cache"}, "~/.cache/welldone/models"),
        ({"WELLDONE_HOME": "", "XDG_CACHE_HOME": ""}, "~/.cache/welldone/models"),
        ({"WELLDONE_HOME": "~/w"}, "~/w/models"),
        ({}, "~/.cache/welldone/models"),
    ],
)
def test_the_models_folder_depends_on_the_environment(environment: dict[str, str], expected: str) -> None:
    assert store.models_folder(environment) == Path(expected).expanduser()


def test_each_model_is_listed_once(folder: Path) -> None:
    listed = store.list_models(folder)
    assert [(entry.name, entry.path.name) for entry in listed] == [
        ("a", "a.gguf"),
        ("b", "b-00001-of-00002.gguf"),
        ("c", "c-00001-of-00003.gguf"),
    ]
    assert [entry.problem for entry in listed] == [None, None, "lacks 2 of its 3 files; pull it again"]
    split_model = listed[1]
    assert split_model.metadata is not None
    assert split_model.metadata.parameters == 101 + 102
    assert split_model.size_bytes == sum((folder / name).stat().st_size for name in NAMES[1:3])


def test_an_invalid_file_is_listed_with_its_problem(tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_bytes(b"<html>")
    (entry,) = store.list_models(tmp_path)
    assert entry.metadata is None
    assert entry.problem is not None
    assert "not a GGUF file" in entry.problem


@table(
    ("name", "found"),
    [
        ("a", "a.gguf"),
        ("a.gguf", "a.gguf"),
        ("b", "b-00001-of-00002.gguf"),
        ("b-00001-of-00002", "b-00001-of-00002.gguf"),
        ("b-00001-of-00002.gguf", "b-00001-of-00002.gguf"),
        ("b-00002-of-00002", None),
        ("h", None),
        ("", None),
        (".", None),
        ("*", None),
        ("./a.gguf", None),
        ("../a", None),
        ("/etc/passwd", None),
        ("a\0", None),
        ("default", None),
    ],
)
def test_models_are_found_by_name_but_not_by_path(name: str, found: str | None, folder: Path) -> None:
    path = store.find_model_file(folder, name)
    assert (path and path.name) == found


@pytest.mark.parametrize("name", ["default", DEFAULT_MODEL.name, DEFAULT_MODEL.file_name])
def test_the_builtin_model_is_found_by_its_names(name: str, tmp_path: Path) -> None:
    with (tmp_path / DEFAULT_MODEL.file_name).open("wb") as file:
        file.truncate(DEFAULT_MODEL.size_bytes)
    assert store.find_model_file(tmp_path, name) == tmp_path / DEFAULT_MODEL.file_name
    assert [entry.name for entry in store.list_models(tmp_path)] == [DEFAULT_MODEL.name]


def test_a_missing_folder_has_no_models(tmp_path: Path) -> None:
    assert store.list_models(tmp_path / "none") == []
    assert store.find_model_file(tmp_path / "none", "a") is None


def test_the_origin_of_a_file_is_stored_beside_it(folder: Path) -> None:
    path = folder / "a.gguf"
    assert store.read_origin(path) is None
    origin = ModelOrigin(source="https://host/a.gguf", sha256="0" * 64, fetched="2026-01-01T00:00:00+00:00")
    store.write_origin(path, origin)
    assert store.read_origin(path) == origin
    assert store.list_models(folder)[0].origin == origin


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.gguf", ["a.gguf"]),
        ("a-00002-of-00003.gguf", [f"a-0000{number}-of-00003.gguf" for number in (1, 2, 3)]),
        ("a-1-of-3.gguf", ["a-1-of-3.gguf"]),
    ],
)
def test_the_file_names_of_a_split_model_follow_from_one_of_them(name: str, expected: list[str]) -> None:
    assert store.split_file_names(name) == expected
