"""Fixtures with models: tiny generated ones for speed, and the default model for meaningful text."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.models import encoders, tiny, vision
from welldone.config import builtin_model
from welldone.engines.models.install import PullError
from welldone.engines.models.pull import ModelPuller
from welldone.engines.models.store import models_folder


@dataclass(frozen=True)
class VisionModel:
    """The two files of a vision model."""

    model: Path
    projector: Path


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny models."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def tiny_model(models: Path) -> Path:
    """A chat model whose template supports tools: endless fast nonsense, with characters split across tokens."""
    return tiny.chat_model().write(models / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_thinking_model(models: Path) -> Path:
    """A model whose template opens `<think>`. It ends its reasoning and its answer by itself."""
    return tiny.thinking_model().write(models / "tiny-thinking.gguf")


@pytest.fixture(scope="session")
def tiny_calling_model(models: Path) -> Path:
    """A model that starts tool calls within its text, in the format that llama.cpp parses."""
    return tiny.calling_model().write(models / "tiny-calling.gguf")


@pytest.fixture(scope="session")
def tiny_broken_model(models: Path) -> Path:
    """A model that generates many incomplete UTF-8 characters."""
    return tiny.broken_model().write(models / "tiny-broken.gguf")


@pytest.fixture(scope="session")
def tiny_embedding_model(models: Path) -> Path:
    """A BERT with mean pooling and vectors of 32 numbers."""
    return encoders.embedding_model().write(models / "tiny-embedding.gguf")


@pytest.fixture(scope="session")
def tiny_rerank_model(models: Path) -> Path:
    """A BERT for reranking."""
    return encoders.rerank_model().write(models / "tiny-rerank.gguf")


@pytest.fixture(scope="session")
def tiny_vision(models: Path, tiny_model: Path) -> VisionModel:
    """The tiny chat model and a vision projector."""
    return VisionModel(tiny_model, vision.projector().write(models / "tiny-vision-mmproj.gguf"))


def load_default_model() -> Path:
    """Return the built-in model. It is downloaded once, into the models folder; PullError if it cannot be."""
    if path := os.environ.get("WELLDONE_TEST_MODEL"):
        return Path(path)
    folder = models_folder(os.environ)
    return builtin_model.find_builtin(folder) or ModelPuller(folder).pull(builtin_model.DEFAULT_MODEL.name)


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The built-in model."""
    try:
        return load_default_model()
    except PullError as error:
        pytest.skip(f"the built-in model is not downloaded: {error}")
