"""`welldone pull`: fetch a model."""

import os
from pathlib import Path

from welldone.cli import show
from welldone.cli.exits import ExitCode, UsageError
from welldone.cli.options import CommandParser
from welldone.cli.progress import download_progress
from welldone.engines import default
from welldone.engines.arrival import PullError, PullErrorKind, format_size
from welldone.engines.gguf import GgufMetadata, GgufError, read_metadata
from welldone.engines.pull import pull
from welldone.engines.sources import SOURCE_FORMATS
from welldone.engines.store import models_folder, model_name_of

EXAMPLES = """
welldone pull default
welldone pull hf:OWNER/REPOSITORY/FILE.gguf
welldone pull hf:OWNER/REPOSITORY/FILE.gguf@REVISION
welldone pull https://HOST/PATH/FILE.gguf --sha256 HEX
"""
PULL_EXIT_CODES = {
    PullErrorKind.USER_ERROR: ExitCode.USAGE,
    PullErrorKind.UNREACHABLE: ExitCode.UNREACHABLE,
    PullErrorKind.INVALID_FILE: ExitCode.FAILED,
}


def run(arguments: list[str]) -> ExitCode:
    """Fetch what was asked for; its path goes to standard output."""
    options = _parser().parse(arguments)
    try:
        path = fetch_model(options.source, folder=models_folder(os.environ), sha256=options.sha256)
    except PullError as error:
        if error.kind is PullErrorKind.USER_ERROR:
            raise UsageError(str(error)) from None
        show.print_note(str(error))
        return PULL_EXIT_CODES[error.kind]
    try:
        facts = read_metadata(path)
    except GgufError as error:
        show.print_note(f"{path.name} was fetched, but it {error}")
        return ExitCode.FAILED
    show.print_note(f"{path.name}: {_describe_model(facts)}")
    show.print_note(f"serve it: welldone serve{_model_flag(path, facts)}")
    show.print_line(str(path))
    return ExitCode.OK


def fetch_model(source: str, *, folder: Path, sha256: str | None = None) -> Path:
    """Fetch a model while a person can see how far it is; its file. Raises `PullError`."""
    with download_progress() as progress:
        return pull(source, folder=folder, progress=progress, sha256=sha256)


def _parser() -> CommandParser:
    parser = CommandParser(
        "pull",
        "Fetch a model into the folder of models, with its hash checked. What broke off goes on where it ended,\n"
        "if it comes from https or hf; the built-in model begins anew.\n"
        "The folder is WELLDONE_HOME/models, else welldone/models where the system keeps what can be fetched again.\n"
        "A model on the Hugging Face hub needs the extra: pip install 'welldone[hub]'; HF_TOKEN opens private ones.",
        EXAMPLES,
    )
    parser.add_argument("source", metavar="SOURCE", help=SOURCE_FORMATS)
    parser.add_argument("--sha256", metavar="HEX", help="what its sha256 must be")
    return parser


def _describe_model(facts: GgufMetadata) -> str:
    said = [format_size(facts.size_bytes), facts.file_type, facts.architecture]
    if facts.parameters:
        said.append(f"{show.short_count(facts.parameters)} parameters")
    if facts.context_length:
        said.append(f"context {facts.context_length:,}")
    return ", ".join(show.printable_name(word) for word in said if word)


def _model_flag(path: Path, facts: GgufMetadata) -> str:
    if path.name == default.DEFAULT_MODEL.file_name:
        return ""
    return f" -m MODEL --mmproj {path}" if facts.is_projector else f" -m {model_name_of(path)}"
