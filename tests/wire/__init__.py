"""Tests of the core, one file per module: bytes and events in, bytes and events out."""
