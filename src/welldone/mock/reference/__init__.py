"""A mock server that answers every request correctly, without a model."""
