"""Downloads from the Hugging Face Hub. The only module that imports huggingface_hub, an optional and slow import.

The library reads HF_ENDPOINT and HF_TOKEN, and resumes interrupted downloads.
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
from welldone.engines.models import install
from welldone.engines.models.install import FreeSpace, HubSource, Progress, PullError

_HTTP_ERROR: type[Exception] = HfHubHTTPError.__mro__[1]
"""Base error of the HTTP library: requests or httpx, depending on the major version of huggingface_hub."""
_PROGRESS_POLL_S = 0.2
_SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch_from_hub(
    file: HubSource, staging: Path, name: str, progress: Progress, free: FreeSpace
) -> tuple[Path, str | None]:
    """Download a file into the folder `staging`; return its path, and its sha256 according to the Hub."""
    disable_progress_bars()  # progress is reported in the same way for all sources
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        url = hf_hub_url(file.repository, file.path, revision=file.revision)
        metadata = get_hf_file_metadata(url, library_name="welldone", library_version=__version__)
        partial_bytes = install.largest_file_bytes(staging, (".incomplete",))
        install.check_free_space(staging, max(0, (metadata.size or 0) - partial_bytes), free)
        with _progress_reporting(staging, name, metadata.size, progress):
            # The commit, not the branch: the hash belongs to exactly this version.
            path = hf_hub_download(
                file.repository,
                file.path,
                revision=metadata.commit_hash or file.revision,
                local_dir=staging,
                library_name="welldone",
                library_version=__version__,
            )
    except (_HTTP_ERROR, OSError, ValueError, RuntimeError, EntryNotFoundError) as error:
        raise _hub_error(file, error) from None
    return Path(path), metadata.etag if metadata.etag and _SHA256.fullmatch(metadata.etag) else None


@contextmanager
def _progress_reporting(folder: Path, name: str, total: int | None, progress: Progress) -> Iterator[None]:
    """Report the growth of the file, independent of the library's transfer method."""
    is_done = threading.Event()

    def poll() -> None:
        while not is_done.wait(_PROGRESS_POLL_S):
            progress(name, install.largest_file_bytes(folder, (".incomplete", ".gguf")), total)

    thread = threading.Thread(target=poll, name="hub-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
    progress(name, total or install.largest_file_bytes(folder, (".gguf",)), total)


def _hub_error(file: HubSource, error: Exception) -> PullError:
    """Describe an error. The library's messages are not used, since they may contain signed URLs."""
    match error:
        case GatedRepoError():
            reason = "is gated: request access on its page, then set HF_TOKEN"
        case RepositoryNotFoundError():
            reason = f"was not found: there is no repository {file.repository}, or it is private (then set HF_TOKEN)"
        case RevisionNotFoundError():
            reason = f"was not found: the repository has no revision {file.revision!r}"
        case OfflineModeIsEnabled():
            reason = "cannot be downloaded: HF_HUB_OFFLINE is set; unset it and try again"
        case EntryNotFoundError() if not isinstance(error, FileNotFoundError):  # that one: the Hub is unreachable
            reason = f"was not found: the repository has no file {file.path}"
        case HfHubHTTPError(response=response) if response.status_code in (401, 403):
            reason = f"is not accessible ({response.status_code}); check HF_TOKEN"
        case HfHubHTTPError(response=response) if response.status_code in (404, 410):
            reason = f"was not found ({response.status_code}); check its name"
        case HfHubHTTPError(response=response):
            reason = f"cannot be downloaded: the Hub answered {response.status_code}; try again later"
        case ValueError():
            return install.user_error(f"{file} is not a file name on the Hub; write hf:OWNER/REPOSITORY/FILE.gguf")
        case OSError(strerror=str() as text):
            reason = f"cannot be downloaded: {text.lower()}"
        case _:
            reason = "cannot be downloaded: the Hub is unreachable; check the connection, and HF_ENDPOINT if it is set"
    return PullError(f"{file} {reason}")
