"""Models for tests, as fixtures: tiny ones made here for speed, and the default model for sense."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.models import encoders, tiny, vision
from welldone.config import builtin_model
from welldone.engines.models import pull
from welldone.engines.models.install import PullError, no_progress
from welldone.engines.models.store import models_folder


@dataclass(frozen=True)
class Seeing:
    """The two files of a model that sees."""

    model: Path
    projector: Path


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the tiny models are made."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def tiny_model(models: Path) -> Path:
    """A chat model whose template knows tools: fast nonsense, in characters cut over tokens, that does not end."""
    return tiny.chat_model().write(models / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_thinking_model(models: Path) -> Path:
    """A model whose template opens `<think>`. It ends its thoughts and its answer by itself."""
    return tiny.thinking_model().write(models / "tiny-thinking.gguf")


@pytest.fixture(scope="session")
def tiny_calling_model(models: Path) -> Path:
    """A model that begins calls in the midst of its text, as llama.cpp's own parser hears them."""
    return tiny.calling_model().write(models / "tiny-calling.gguf")


@pytest.fixture(scope="session")
def tiny_broken_model(models: Path) -> Path:
    """A model many of whose characters lack their end."""
    return tiny.broken_model().write(models / "tiny-broken.gguf")


@pytest.fixture(scope="session")
def tiny_embedding_model(models: Path) -> Path:
    """A BERT with mean pooling, vectors of 32 numbers."""
    return encoders.embedding_model().write(models / "tiny-embedding.gguf")


@pytest.fixture(scope="session")
def tiny_rerank_model(models: Path) -> Path:
    """A BERT that ranks."""
    return encoders.rerank_model().write(models / "tiny-rerank.gguf")


@pytest.fixture(scope="session")
def tiny_vision(models: Path, tiny_model: Path) -> Seeing:
    """The tiny chat model and an eye for it."""
    return Seeing(tiny_model, vision.projector().write(models / "tiny-vision-mmproj.gguf"))


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The model that is served when nothing else is asked for. It is fetched once, into the folder of models."""
    if named := os.environ.get("WELLDONE_TEST_MODEL"):
        return Path(named)
    folder = models_folder(os.environ)
    if found := builtin_model.find_builtin(folder):
        return found
    try:
        return pull.pull(builtin_model.DEFAULT_MODEL.name, folder=folder, progress=no_progress)
    except PullError as error:
        pytest.skip(f"the default model is not here and cannot be fetched: {error}")
