"""The forms of a report: what a run came to, for eyes and for programs."""
