"""Program that searches the Hub or downloads a model, for a server.

The library of the Hub is slow to import and its downloads cannot be cancelled, so it runs in a process of its own: the
job is a line of JSON on standard input, events are lines of JSON on standard output, the last one is the result.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from welldone.engines import parent_death
from welldone.engines.models import install, repository
from welldone.engines.models.install import HubRepository, Progress, PullError
from welldone.engines.models.pull import ModelPuller, importing_hub

_NICENESS = 10  # streams have priority
_PROGRESS_INTERVAL_S = 0.5


class HubJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to do. `text` is the words to search for, a repository, or the source to download."""

    action: Literal["search", "files", "pull"]
    text: str
    folder: str = ""
    limit: int = 0


class HubEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of output: progress of a file, or the end with a result or an error."""

    file: str | None = None
    done_bytes: int = 0
    total_bytes: int | None = None
    result: Any = None
    error: str | None = None
    error_kind: str | None = None


def main() -> None:
    """Run the job on standard input."""
    os.nice(_NICENESS)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=HubJob)
    parent_death.exit_on_stdin_eof()
    try:
        event = HubEvent(result=_run(job))
    except PullError as error:
        event = HubEvent(error=str(error), error_kind=error.kind.value)
    _write(event)


def _run(job: HubJob) -> object:
    if job.action == "pull":
        return str(ModelPuller(Path(job.folder), _progress_lines()).pull(job.text))
    with importing_hub():
        from welldone.engines.models import hub
    if job.action == "search":
        return hub.search_repositories(job.text, job.limit)
    source = install.parse_hub_source(job.text)
    if not isinstance(source, HubRepository):
        raise install.user_error(f"{job.text} is a file, not a repository")
    models = repository.list_models(hub.list_files(source))
    default = repository.preferred_model(models)
    return [
        {
            "label": model.label,
            "source": str(repository.source_of(source, model)),
            "size_bytes": model.size_bytes,
            "files": model.files,
            "is_default": model is default,
        }
        for model in models[: job.limit]
    ]


def _progress_lines() -> Progress:
    """Return a function that writes progress, but not more often than anybody reads it."""
    last_s: dict[str, float] = {}

    def report(name: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - last_s.get(name, 0.0) >= _PROGRESS_INTERVAL_S:
            last_s[name] = now
            _write(HubEvent(file=name, done_bytes=done, total_bytes=total))

    return report


def _write(event: HubEvent) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
