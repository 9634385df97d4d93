"""The Python API over the sans-I/O core: repair, write, read and judge streams. `welldone` exports its names."""
