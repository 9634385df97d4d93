"""Streams: bytes of an upstream in, repaired bytes out, with the reader, repair and writer of the dialects."""
