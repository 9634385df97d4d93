"""The judge: which rules of the stream a heard reply breaks. No I/O; of `wire` only `sse` and `faults`."""
