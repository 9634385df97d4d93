"""Fixtures: a server with many tiny models that are loaded on first use, a scripted upstream, and a Redis."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.redis import RealRedis, real_redis
from tests.models.fixtures import VisionModel
from tests.support.server import Running, serving
from tests.support.upstream import Upstream, upstream

_SMALL = "threads = 1\nctx_size = 4096\nparallel = 2"


@pytest.fixture(scope="session")
def zoo(
    tiny_thinking_model: Path,
    tiny_calling_model: Path,
    tiny_broken_model: Path,
    tiny_embedding_model: Path,
    tiny_rerank_model: Path,
    tiny_vision: VisionModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    """A server with tiny models for reasoning, tool calls, invalid UTF-8, images, embeddings and reranking."""
    folder = tmp_path_factory.mktemp("zoo")
    tables = {
        "thinking": f'file = "{tiny_thinking_model}"',
        "calling": f'file = "{tiny_calling_model}"',
        "broken": f'file = "{tiny_broken_model}"',
        "seeing": f'file = "{tiny_vision.model}"\nmmproj = "{tiny_vision.projector}"',
        "embedding": f'file = "{tiny_embedding_model}"',
        "ranking": f'file = "{tiny_rerank_model}"',
        "both": f'file = "{tiny_vision.model}"\nembeddings = true',
    }
    text = f"[defaults]\n{_SMALL}\n" + "".join(f"[models.{name}]\n{table}\n" for name, table in tables.items())
    (folder / "welldone.toml").write_text(text)
    with serving([], folder=folder, is_awaited=False) as running:
        yield running
        assert running.end() == 0


@pytest.fixture
def backend() -> Iterator[Upstream]:
    with upstream() as started:
        yield started


@pytest.fixture
def redis() -> Iterator[RealRedis]:
    with real_redis(password="canary-of-redis") as started:
        yield started
