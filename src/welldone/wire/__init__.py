"""The core: what a right stream is. No I/O, no clock, no chance; the standard library and msgspec only."""
