"""OpenAI-compatible streaming, well `[DONE]`."""

__version__ = "0.1.0"
