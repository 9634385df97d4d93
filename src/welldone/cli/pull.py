"""`welldone pull`: fetch a model."""

import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import cast

from welldone.cli import ui
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError
from welldone.config import builtin_model
from welldone.engines.models.install import SOURCE_FORMATS, Progress, PullError, PullErrorKind, format_size
from welldone.engines.models.pull import pull
from welldone.engines.models.store import GgufError, GgufMetadata, model_name_of, models_folder, read_metadata

# How far a download is: a bar on a terminal, a few lines anywhere else.


_SILENT_S = 2.0  # what takes no longer needs no progress
_UNSIZED_INTERVAL_S = 10.0  # between two lines where nobody knows how much will come


def download_progress(*, is_terminal: bool | None = None) -> AbstractContextManager[Progress]:
    """What tells a person how far it is."""
    if is_terminal is None:
        is_terminal = ui.is_interactive()
    if not is_terminal:
        return progress_lines()
    try:
        bar = importlib.import_module("welldone.cli.progress_bar")  # its library is slow to load, and an extra
    except ModuleNotFoundError:
        return progress_lines()
    return cast("AbstractContextManager[Progress]", bar.bar())


@contextmanager
def progress_lines(clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """A line at most every tenth of the way, and none for what is quick."""
    begun = clock()
    told: dict[str, tuple[int, float]] = {}

    def tell(name: str, done: int, total: int | None) -> None:
        now = clock()
        tenth, last_s = told.setdefault(name, (10 * done // total if total else 0, begun))
        if now - begun < _SILENT_S:
            return
        if total:
            step = 10 * done // total
            if tenth < step < 10:
                told[name] = (step, now)
                ui.print_note(f"{ui.printable_name(name)}: {10 * step} % of {format_size(total)}")
        elif now - last_s >= _UNSIZED_INTERVAL_S:
            told[name] = (tenth, now)
            ui.print_note(f"{ui.printable_name(name)}: {format_size(done)}" if done else ui.printable_name(name))

    yield tell


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
        ui.print_note(str(error))
        return PULL_EXIT_CODES[error.kind]
    try:
        facts = read_metadata(path)
    except GgufError as error:
        ui.print_note(f"{path.name} was fetched, but it {error}")
        return ExitCode.FAILED
    ui.print_note(f"{path.name}: {_describe_model(facts)}")
    ui.print_note(f"serve it: welldone serve{_model_flag(path, facts)}")
    ui.print_line(str(path))
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
        said.append(f"{ui.short_count(facts.parameters)} parameters")
    if facts.context_length:
        said.append(f"context {facts.context_length:,}")
    return ", ".join(ui.printable_name(word) for word in said if word)


def _model_flag(path: Path, facts: GgufMetadata) -> str:
    if path.name == builtin_model.DEFAULT_MODEL.file_name:
        return ""
    return f" -m MODEL --mmproj {path}" if facts.is_projector else f" -m {model_name_of(path)}"
