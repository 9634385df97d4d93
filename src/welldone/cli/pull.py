"""`welldone pull`: fetch a model."""

import os
from pathlib import Path

from welldone.cli import show
from welldone.cli.exits import Exit, UsageError
from welldone.cli.options import Parser
from welldone.cli.progress import watching
from welldone.engines import default
from welldone.engines.arrival import PullError, Trouble, megabytes
from welldone.engines.gguf import Facts, GgufError, read_facts
from welldone.engines.pull import pull
from welldone.engines.sources import KNOWN
from welldone.engines.store import models_folder, name_of

EXAMPLES = """
welldone pull default
welldone pull hf:OWNER/REPOSITORY/FILE.gguf
welldone pull hf:OWNER/REPOSITORY/FILE.gguf@REVISION
welldone pull https://HOST/PATH/FILE.gguf --sha256 HEX
"""
EXITS = {Trouble.MISTAKE: Exit.USAGE, Trouble.UNREACHABLE: Exit.UNREACHABLE, Trouble.WRONG: Exit.FOUND}


def run(arguments: list[str]) -> Exit:
    """Fetch what was asked for; its path goes to standard output."""
    options = _parser().read(arguments)
    try:
        path = fetch(options.source, folder=models_folder(os.environ), sha256=options.sha256)
    except PullError as error:
        if error.trouble is Trouble.MISTAKE:
            raise UsageError(str(error)) from None
        show.note(str(error))
        return EXITS[error.trouble]
    try:
        facts = read_facts(path)
    except GgufError as error:
        show.note(f"{path.name} was fetched, but it {error}")
        return Exit.FOUND
    show.note(f"{path.name}: {_described(facts)}")
    show.note(f"serve it: welldone serve{_model_flag(path, facts)}")
    show.line(str(path))
    return Exit.RIGHT


def fetch(source: str, *, folder: Path, sha256: str | None = None) -> Path:
    """Fetch a model while a person can see how far it is; its file. Raises `PullError`."""
    with watching() as progress:
        return pull(source, folder=folder, progress=progress, sha256=sha256)


def _parser() -> Parser:
    parser = Parser(
        "pull",
        "Fetch a model into the folder of models, with its hash checked. What broke off goes on where it ended,\n"
        "if it comes from https or hf; the built-in model begins anew.\n"
        "The folder is WELLDONE_HOME/models, else welldone/models where the system keeps what can be fetched again.\n"
        "A model on the Hugging Face hub needs the extra: pip install 'welldone[hub]'; HF_TOKEN opens private ones.",
        EXAMPLES,
    )
    parser.add_argument("source", metavar="SOURCE", help=KNOWN)
    parser.add_argument("--sha256", metavar="HEX", help="what its sha256 must be")
    return parser


def _described(facts: Facts) -> str:
    said = [megabytes(facts.size_bytes), facts.file_type, facts.architecture]
    if facts.parameters:
        said.append(f"{show.short(facts.parameters)} parameters")
    if facts.context_length:
        said.append(f"context {facts.context_length:,}")
    return ", ".join(show.name(word) for word in said if word)


def _model_flag(path: Path, facts: Facts) -> str:
    if path.name == default.DEFAULT.file_name:
        return ""
    return f" -m MODEL --mmproj {path}" if facts.is_projector else f" -m {name_of(path)}"
