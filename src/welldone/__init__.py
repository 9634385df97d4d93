"""OpenAI-compatible streaming, well `[DONE]`."""

__version__ = "0.2.0"
