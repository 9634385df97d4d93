"""Files of a system, such as those in /proc and /sys, in a folder of a test."""

from pathlib import Path


def write(root: Path, files: dict[str, str]) -> Path:
    """Write files, each with a line end; return the folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root
