"""`welldone pull`: download a model.

Download a model into the models folder and verify its hash. Interrupted downloads from https and hf are
resumed; that of the built-in model starts again.
The folder is WELLDONE_HOME/models, else welldone/models in the user's cache folder.
Models on the Hugging Face hub need the extra hub. Set HF_TOKEN for private and gated ones.
Without a quantisation it lists those of the repository, and on a terminal asks for one. All files of a split
model are downloaded. With the extra, https URLs of the hub are downloaded like hf sources.

examples:
  welldone pull default
  welldone pull hf:OWNER/REPOSITORY:Q4_K_M
  welldone pull hf:OWNER/REPOSITORY
  welldone pull hf:OWNER/REPOSITORY/FILE.gguf
  welldone pull hf:OWNER/REPOSITORY/FILE.gguf@REVISION
  welldone pull https://HOST/PATH/FILE.gguf --sha256 HEX
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path

from welldone.cli import ui
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError
from welldone.config import builtin_model
from welldone.config.model import ModelSettings
from welldone.engines.models.gguf import GgufError, GgufMetadata, read_metadata
from welldone.engines.models.install import (
    SOURCE_FORMATS,
    HubRepository,
    HubSource,
    Progress,
    PullError,
    PullErrorKind,
    format_size,
)
from welldone.engines.models.pull import ModelPuller
from welldone.engines.models.repository import AmbiguousModelError, source_of
from welldone.engines.models.store import model_name_of, models_folder

_SILENT_S = 2.0  # shorter downloads show no progress
_UNSIZED_INTERVAL_S = 10.0  # between two lines if the size is unknown
_MAX_QUESTIONS = 5


def download_progress(*, is_terminal: bool | None = None) -> AbstractContextManager[Progress]:
    """Return a progress bar for terminals, or a progress that prints lines."""
    if is_terminal is None:
        is_terminal = ui.is_interactive()
    return progress_bar() if is_terminal and find_spec("rich") is not None else progress_lines()


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show one line per file on stderr, with bytes, rate and remaining time."""
    from rich import progress as rich_progress  # an extra, and slow to import
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}", markup=False),  # file names from outside are not markup
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
        rich_progress.TimeRemainingColumn(compact=True),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, rich_progress.TaskID] = {}

        def report(name: str, done: int, total: int | None) -> None:
            if name not in tasks:  # bytes of an earlier attempt do not count towards the rate
                tasks[name] = progress.add_task(name, completed=done, total=total)
            else:
                progress.update(tasks[name], completed=done, total=total)

        yield report


@contextmanager
def progress_lines(clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """Print a line per tenth of the download, and none for quick downloads."""
    started_at = clock()
    reported: dict[str, tuple[int, float]] = {}

    def report(name: str, done: int, total: int | None) -> None:
        now = clock()
        tenth, last_s = reported.setdefault(name, (10 * done // total if total else 0, started_at))
        if now - started_at < _SILENT_S:
            return
        if total:
            step = 10 * done // total
            if tenth < step < 10:
                reported[name] = (step, now)
                ui.print_note(f"{ui.printable_name(name)}: {10 * step} % of {format_size(total)}")
        elif now - last_s >= _UNSIZED_INTERVAL_S:
            reported[name] = (tenth, now)
            ui.print_note(f"{ui.printable_name(name)}: {format_size(done)}" if done else ui.printable_name(name))

    yield report


PULL_EXIT_CODES = {
    PullErrorKind.USER_ERROR: ExitCode.USAGE,
    PullErrorKind.UNREACHABLE: ExitCode.UNREACHABLE,
    PullErrorKind.INVALID_FILE: ExitCode.FAILED,
}


def run(arguments: list[str]) -> ExitCode:
    """Download a model; its path goes to standard output."""
    options = _parser().parse(arguments)
    folder = models_folder(os.environ)
    try:
        try:
            path = fetch_model(options.source, folder=folder, sha256=options.sha256)
        except AmbiguousModelError as error:
            path = fetch_model(str(_ask_for_model(error)), folder=folder, sha256=options.sha256)
    except PullError as error:
        if error.kind is PullErrorKind.USER_ERROR:
            raise UsageError(str(error)) from None
        ui.print_note(str(error))
        return PULL_EXIT_CODES[error.kind]
    try:
        metadata = read_metadata(path)
    except GgufError as error:
        ui.print_note(f"{path.name} was downloaded, but it {error}")
        return ExitCode.FAILED
    ui.print_note(f"{path.name}: {_describe_model(metadata)}")
    flag = f" -m MODEL --mmproj {path}" if metadata.is_projector else f" -m {model_name_of(path)}"
    ui.print_note(f"serve it: welldone serve{'' if path.name == builtin_model.DEFAULT_MODEL.file_name else flag}")
    ui.print_line(str(path))
    return ExitCode.OK


def fetch_model(source: str, *, folder: Path, sha256: str | None = None) -> Path:
    """Download a model with a progress display; return its file. Raises `PullError`."""
    with download_progress() as progress:
        return ModelPuller(folder, progress).pull(source, sha256)


def fetch_configured_model(model: ModelSettings, *, folder: Path) -> Path:
    """Download the model of the settings with a progress display; return its file. Raises `PullError`."""
    with download_progress() as progress:
        return ModelPuller(folder, progress).pull_configured(model)


def _ask_for_model(error: AmbiguousModelError) -> HubRepository | HubSource:
    """Ask which model of a repository to download. Without a terminal the error is raised again."""
    width = max(len(model.label) for model in error.models)
    lines = [f"{error.source} has {len(error.models)} quantisations:"]
    for number, model in enumerate(error.models, 1):
        size = format_size(model.size_bytes) if model.size_bytes else ""
        parts = f", {model.files} files" if model.files > 1 else ""
        lines.append(f"{number:4}  {ui.printable_name(model.label):{width}}  {size:>9}{parts}")
    default = error.default
    question = f"Number or name{f' [{default.label}]' if default else ''}: "
    for _ in range(_MAX_QUESTIONS):
        answer = ui.ask("\n".join([*lines, question]))
        if answer is None:
            raise error
        if not answer and default is not None:
            return source_of(error.source, default)
        for number, model in enumerate(error.models, 1):
            if answer.casefold() in (str(number), model.label.casefold()):
                return source_of(error.source, model)
        lines = [f"{ui.printable_name(answer)} is not one of them."]
    raise error


def _parser() -> CommandParser:
    parser = CommandParser("pull", __doc__)
    parser.option("SOURCE", SOURCE_FORMATS, dest="source")
    parser.option("--sha256 HEX", "the expected SHA-256 of the file")
    return parser


def _describe_model(metadata: GgufMetadata) -> str:
    parts = [format_size(metadata.size_bytes), metadata.file_type, metadata.architecture]
    if metadata.parameters:
        parts.append(f"{ui.short_count(metadata.parameters)} parameters")
    if metadata.context_length:
        parts.append(f"context {metadata.context_length:,}")
    return ", ".join(ui.printable_name(word) for word in parts if word)
