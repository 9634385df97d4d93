"""Report formats of `welldone check`."""
