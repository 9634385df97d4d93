"""Where an engine listens, and the key that it wants. An engine is an HTTP server as any other."""

from welldone.net.outbound import Address

__all__ = ["Address"]
