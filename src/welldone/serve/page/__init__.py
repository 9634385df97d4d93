"""What the page asks of the server: its files, its state, and what went over the wire."""
