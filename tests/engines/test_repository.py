"""Models of a repository on the Hub: quantisations by file name, defaults, installed models."""

from pathlib import Path

import pytest

from tests.engines import files
from welldone.config.model import ModelSettings
from welldone.engines.models import install, repository
from welldone.engines.models.install import HubRepository, HubSource, PullError, parse_hub_source, parse_source
from welldone.engines.models.repository import AmbiguousModelError, RepositoryFile
from welldone.engines.models.store import ModelOrigin, write_origin

SOURCE = HubRepository("owner/repo", None, None)


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("phi-4-Q4_K_M.gguf", "Q4_K_M"),
        ("phi-4.q4_k_m.gguf", "Q4_K_M"),
        ("qwen2.5-7b_iq3_xxs.gguf", "IQ3_XXS"),
        ("model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Q6_K/model-00001-of-00003.gguf", "Q6_K"),
        ("model-BF16.gguf", "BF16"),
        ("model-fp16.gguf", "FP16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("model-Q4_0_4_8.gguf", "Q4_0_4_8"),
        ("model-Q4_K_M-v2.gguf", "Q4_K_M"),
        ("q8-model.gguf", None),
        ("model.gguf", None),
    ],
)
def test_the_quantisation_is_read_from_the_name(path: str, label: str | None) -> None:
    assert repository.quantisation_of(path) == label


def models_of(*paths: str) -> list[repository.RepositoryModel]:
    return repository.list_models(RepositoryFile(path, 10**9 + len(path)) for path in paths)


def test_split_models_are_one_and_incomplete_ones_are_left_out() -> None:
    paths = [f"a-Q8_0-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert [(model.label, model.files, str(model)) for model in models_of(*paths)] == [("Q8_0", 3, "Q8_0 (3.0 GB)")]
    assert models_of(*paths[:2]) == []
    assert models_of("mmproj-a-F16.gguf", "a.imatrix.gguf", "a.safetensors", "README.md") == []


def test_models_of_the_same_quantisation_are_named_by_their_files() -> None:
    models = models_of("x/a-Q4_0.gguf", "y/a-Q4_0.gguf", "b.gguf")
    assert {model.label for model in models} == {"x/a-Q4_0.gguf", "y/a-Q4_0.gguf", "b.gguf"}
    with pytest.raises(AmbiguousModelError, match=r"welldone pull hf:owner/repo/x/a-Q4_0\.gguf$"):
        repository.choose_model(parse_repository("owner/repo:q4_0"), models, takes_default=True)


def parse_repository(text: str) -> HubRepository:
    source = parse_hub_source(text)
    assert isinstance(source, HubRepository)
    return source


@pytest.mark.parametrize(
    ("paths", "label"),
    [
        (("a-Q8_0.gguf", "a-Q4_K_M.gguf"), "Q4_K_M"),
        (("a-Q8_0.gguf", "a-Q4_0.gguf"), "Q4_0"),
        (("a-F32.gguf",), "F32"),
    ],
)
def test_the_default_has_four_bits_if_there_is_one(paths: tuple[str, ...], label: str) -> None:
    assert repository.choose_model(SOURCE, models_of(*paths), takes_default=True).label == label


def test_without_a_default_the_choice_is_the_users() -> None:
    with pytest.raises(AmbiguousModelError, match=r"has 2 quantisations: F16 \(1\.0 GB\), F32 .*: welldone pull hf:o"):
        repository.choose_model(SOURCE, models_of("a-F16.gguf", "aa-F32.gguf"), takes_default=True)


@pytest.mark.parametrize(
    "text", ["hf:owner/repo", "hf:owner/repo:Q4_K_M", "hf:owner/repo:Q4_K_M@v1", "hf:owner/repo/a/b.gguf@main"]
)
def test_a_source_is_printed_as_it_is_written(text: str) -> None:
    assert str(parse_source(text)) == text
    assert str(parse_hub_source(text.removeprefix("hf:"))) == text


@pytest.mark.parametrize("text", ["repo", "a/b:", "a/b:c d", "a/b/../c.gguf", "a/b/c.bin", "https://h/a.gguf"])
def test_an_invalid_source_on_the_hub_is_refused(text: str) -> None:
    with pytest.raises(PullError):
        parse_hub_source(text)


def install_model(folder: Path, source: str, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    parts = parse_hub_source(source)
    assert isinstance(parts, HubSource)
    for name, file in zip(names, parts.files(), strict=False):
        (folder / name).write_bytes(files.model(10))
        write_origin(folder / name, ModelOrigin(source=str(file), sha256="0" * 64, fetched=""))


def test_an_installed_model_is_found_without_the_hub(tmp_path: Path) -> None:
    install_model(tmp_path, "owner/repo/a-Q8_0.gguf", "a-Q8_0.gguf")
    install_model(tmp_path, "owner/repo/b-F32-00001-of-00002.gguf", "b-F32-00001-of-00002.gguf")  # incomplete
    install_model(tmp_path, "owner/repo/c-Q4_K_M.gguf@v1", "c-Q4_K_M.gguf")
    (tmp_path / "d-Q4_0.gguf").write_bytes(files.model(10))

    def found(text: str) -> str | None:
        path = repository.find_configured_model(tmp_path, ModelSettings(name="m", hf_repo=text))
        return None if path is None else path.name

    assert found("owner/repo") == found("hf:owner/repo:q8_0") == found("owner/repo/a-Q8_0.gguf") == "a-Q8_0.gguf"
    assert found("owner/repo@v1") == found("owner/repo:Q4_K_M@v1") == "c-Q4_K_M.gguf"
    for text in ("owner/repo:Q4_K_M", "owner/repo:F32", "owner/repo:Q4_0", "owner/other", "owner/repo/d-Q4_0.gguf"):
        assert found(text) is None
    assert found("owner/repo/b-F32-00001-of-00002.gguf") is None
    assert install.parse_hub_file("hf:owner/repo") is None
    assert install.parse_hub_file("hf:../x") is None
