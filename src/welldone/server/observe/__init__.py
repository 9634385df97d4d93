"""Metrics, logs, recordings, and what several worker processes share."""
