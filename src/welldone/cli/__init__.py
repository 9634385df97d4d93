"""The commands, one module each. `ui` prints all output."""
