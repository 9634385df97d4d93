"""Settings: one field is a flag, an environment variable, a TOML key and its documentation."""
