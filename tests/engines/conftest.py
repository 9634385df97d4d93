"""The models, for the tests of this folder."""

from tests.models.fixtures import default_model, models, tiny_embedding_model, tiny_model, tiny_rerank_model

__all__ = ["default_model", "models", "tiny_embedding_model", "tiny_model", "tiny_rerank_model"]
