"""The Hugging Face Hub: search, lists of files, downloads.

The only module that imports huggingface_hub, an optional and slow import.
The library reads HF_ENDPOINT and HF_TOKEN, and resumes interrupted downloads.
"""

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from huggingface_hub import HfApi, get_hf_file_metadata, get_token, hf_hub_download, hf_hub_url
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
from welldone.engines.models.install import FreeSpace, HubRepository, HubSource, Progress, PullError
from welldone.engines.models.repository import RepositoryFile

_HTTP_ERROR: type[Exception] = HfHubHTTPError.__mro__[1]
"""Base error of the HTTP library: requests or httpx, depending on the major version of huggingface_hub."""
_PROGRESS_POLL_S = 0.2
_LIST_TIMEOUT_S = 30.0  # lists of files take about a second
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LIBRARY_ERRORS = (_HTTP_ERROR, OSError, ValueError, RuntimeError, EntryNotFoundError)


class FoundRepository(msgspec.Struct, frozen=True, kw_only=True):
    """A repository that a search found."""

    id: str
    downloads: int
    """Of the last 30 days."""
    likes: int
    is_gated: bool


def search_repositories(query: str, limit: int) -> list[FoundRepository]:
    """Return repositories with GGUF models whose name has these words, the most downloaded first."""
    try:
        api = HfApi(library_name="welldone", library_version=__version__)
        models = api.list_models(search=query, filter="gguf", sort="downloads", limit=limit)
        return [
            FoundRepository(
                id=model.id, downloads=model.downloads or 0, likes=model.likes or 0, is_gated=bool(model.gated)
            )
            for model in models
        ]
    except _LIBRARY_ERRORS as error:
        raise PullError(f"the search failed: {_network_reason(error)}") from None


def list_files(source: HubRepository) -> list[RepositoryFile]:
    """Return the files of a repository with their sizes."""
    try:
        api = HfApi(library_name="welldone", library_version=__version__)
        info = api.model_info(source.repository, revision=source.revision, files_metadata=True, timeout=_LIST_TIMEOUT_S)
    except _LIBRARY_ERRORS as error:
        raise _hub_error(source, error) from None
    return [RepositoryFile(file.rfilename, file.size or 0) for file in info.siblings or ()]


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
    except _LIBRARY_ERRORS as error:
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


def _hub_error(source: HubSource | HubRepository, error: Exception) -> PullError:
    """Describe an error. The library's messages are not used, since they may contain signed URLs."""
    match error:
        case GatedRepoError():
            reason = f"is gated: request access on the page of {source.repository}; {_token_advice()}"
        case RepositoryNotFoundError():
            reason = f"was not found: there is no repository {source.repository}, or it is private: {_token_advice()}"
        case RevisionNotFoundError():
            reason = f"was not found: the repository has no revision {source.revision!r}"
        case EntryNotFoundError() if not isinstance(error, FileNotFoundError):  # that one: the Hub is unreachable
            reason = f"was not found: the repository has no file {getattr(source, 'path', '')}"
        case HfHubHTTPError(response=response) if response.status_code in (401, 403):
            reason = f"is not accessible ({response.status_code}): {_token_advice()}"
        case HfHubHTTPError(response=response) if response.status_code in (404, 410):
            reason = f"was not found ({response.status_code}); check its name"
        case ValueError() if not isinstance(error, HfHubHTTPError):
            return install.user_error(f"{source} is not a name on the Hub; write hf:OWNER/REPOSITORY:QUANTISATION")
        case _:
            reason = f"cannot be downloaded: {_network_reason(error)}"
    return PullError(f"{source} {reason}")


def _network_reason(error: Exception) -> str:
    """Describe a failure that has nothing to do with what was requested."""
    match error:
        case OfflineModeIsEnabled():
            return "HF_HUB_OFFLINE is set; unset it and try again"
        case HfHubHTTPError(response=response):
            return f"the Hub answered {response.status_code}; try again later"
        case OSError(strerror=str() as text):
            return text.lower()
        case _:
            return "the Hub is unreachable; check the connection, and HF_ENDPOINT if it is set"


def _token_advice() -> str:
    """Return what to do about a missing permission. The token may come from HF_TOKEN or from `hf auth login`."""
    if get_token() is None:
        return "set HF_TOKEN to an access token of an account that may read it"
    return "the access token in use has no access to it; set HF_TOKEN to one of an account that may read it"
