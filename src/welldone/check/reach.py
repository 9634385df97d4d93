"""Rules that no probe judges, each with the reason."""

from collections.abc import Mapping

UNCOVERED: Mapping[str, str] = {
    "sse-keepalive-resets-idle": "whether a comment is enough depends on the clock of the client, not on the server",
    "ns-leading-space-ok": "it allows something, and so there is nothing to break",
}
