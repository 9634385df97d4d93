"""Conformance checker: sends probes to a running server and judges its replies by the rules."""
