"""How welldone is installed: the words of every error message about an extra that is missing."""


def install_advice(extra: str) -> str:
    """The command that installs an extra. The package is on no index: it comes from a clone or from a built wheel."""
    return f"pip install '.[{extra}]' in a clone of welldone, or 'FILE.whl[{extra}]' with a built wheel"
