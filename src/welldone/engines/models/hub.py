"""Models from the Hugging Face hub. Only this file knows its library, which is an extra.

The library finds the hub (HF_ENDPOINT), the token (HF_TOKEN) and the way to the bytes; it resumes what broke off.
"""

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from welldone import __version__
from welldone.engines.models.install import (
    FreeSpace,
    HubSource,
    Progress,
    PullError,
    PullErrorKind,
    check_free_space,
    free_bytes,
    largest_file_bytes,
)

_HTTP_ERROR: type[Exception] = HfHubHTTPError.__mro__[1]
"""The error of the HTTP library below, which is another one in each major version of the hub's."""
_PROGRESS_POLL_S = 0.2
_SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch_from_hub(
    file: HubSource, staging: Path, *, name: str, progress: Progress, free: FreeSpace = free_bytes
) -> tuple[Path, str | None]:
    """Fetch a file into the folder `staging`; where it is, and the sha256 that the hub says it has."""
    disable_progress_bars()  # ours is the same for all sources
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        address = hf_hub_url(file.repository, file.path, revision=file.revision)
        known = get_hf_file_metadata(address, library_name="welldone", library_version=__version__)
        had = largest_file_bytes(staging, (".incomplete",))
        check_free_space(staging, max(0, (known.size or 0) - had), free)
        with _progress_reporting(staging, name, known.size, progress):
            # The commit, not the branch: the hash belongs to the very file that we asked about.
            got = hf_hub_download(
                file.repository,
                file.path,
                revision=known.commit_hash or file.revision,
                local_dir=staging,
                library_name="welldone",
                library_version=__version__,
            )
    except (_HTTP_ERROR, OSError, ValueError, RuntimeError, EntryNotFoundError) as error:
        raise _hub_error(file, error) from None
    return Path(got), known.etag if known.etag and _SHA256.fullmatch(known.etag) else None


@contextmanager
def _progress_reporting(folder: Path, name: str, total: int | None, progress: Progress) -> Iterator[None]:
    """Tell how the file grows, whichever way the library takes."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_PROGRESS_POLL_S):
            progress(name, largest_file_bytes(folder, (".incomplete", ".gguf")), total)

    watcher = threading.Thread(target=watch, name="hub-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
    progress(name, total or largest_file_bytes(folder, (".gguf",)), total)


def _hub_error(file: HubSource, error: Exception) -> PullError:
    """What went wrong, in our words: the library's may hold addresses with signatures."""
    match error:
        case GatedRepoError():
            why = "is only for accounts that were let in: ask for access on its page, then set HF_TOKEN"
        case RepositoryNotFoundError():
            why = f"cannot be had: there is no repository {file.repository}, or it is private (then set HF_TOKEN)"
        case RevisionNotFoundError():
            why = f"cannot be had: the repository has no revision {file.revision!r}"
        case OfflineModeIsEnabled():
            why = "cannot be had: HF_HUB_OFFLINE is set; unset it, and try again"
        case EntryNotFoundError() if not isinstance(error, FileNotFoundError):  # that one means: not reached
            why = f"is not there: the repository has no file {file.path}"
        case HfHubHTTPError():
            why = _describe_hub_status(error.response.status_code)
        case ValueError():
            return PullError(
                f"{file} is no name of a file on the hub; write hf:OWNER/REPOSITORY/FILE.gguf", PullErrorKind.USER_ERROR
            )
        case OSError(strerror=str() as reason):
            why = f"could not be fetched: {reason.lower()}"
        case _:
            why = "could not be fetched: the hub was not reached; check the connection, and HF_ENDPOINT if it is set"
    return PullError(f"{file} {why}", PullErrorKind.UNREACHABLE)


def _describe_hub_status(status: int) -> str:
    if status in (401, 403):
        return f"is not for everybody ({status}); check HF_TOKEN"
    if status in (404, 410):
        return f"is not there ({status}); check its name"
    return f"cannot be had now: the hub answered {status}; try again later"
