"""What went wrong on the way to the Hugging Face Hub, in words that say what to do."""

from __future__ import annotations

import errno
import ssl
from collections.abc import Iterator

from edge_vl.errors import EdgeVLError, ModelError, RequestError

__all__ = ["disk_full", "explain", "is_connection_loss"]

_HTTP_LIBRARIES = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3"})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def explain(error: Exception, what: str) -> EdgeVLError:
    """Return an error of ours for one of the library's, the operating system's or the network's.

    Args:
        error: what was raised.
        what: repository, or repository and file, as people know it.

    Raises:
        Exception: the error itself, where it is none that can be expected.
    """
    from huggingface_hub import errors as hub

    if isinstance(error, hub.HFValidationError):
        return RequestError(f"{what!r} is not the name of a repository: {error}", field="model")
    status = _status(error)
    if any(isinstance(cause, hub.OfflineModeIsEnabled) for cause in _chain(error)):
        return _error(what, "cannot be downloaded: HF_HUB_OFFLINE is set; unset it to download")
    if isinstance(error, hub.GatedRepoError):
        return _error(
            what,
            f"is gated: accept its licence at {_page(what)}, make a token at https://huggingface.co/settings/tokens "
            "and set HF_TOKEN to it",
        )
    if isinstance(error, hub.RevisionNotFoundError):
        return _error(what, "has no such revision")
    if isinstance(error, hub.RepositoryNotFoundError) or status in (401, 403):
        return _error(
            what,
            "does not exist, or may not be read with the token in use; check its name and, for a private or gated one, "
            "set HF_TOKEN",
        )
    if isinstance(error, hub.EntryNotFoundError) and status == 404:
        return _error(what, "does not exist")
    if status == 429:
        return _error(what, "cannot be downloaded now: too many requests; wait a few minutes and pull again")
    if status:
        return _error(what, f"cannot be downloaded: the server answers with status {status}; pull again later")
    if full := disk_full(error, what):
        return full
    for cause in _chain(error):
        if isinstance(cause, ssl.SSLError) or "CERTIFICATE_VERIFY_FAILED" in str(cause):
            return _error(
                what, f"cannot be downloaded: no secure connection ({cause}); check the clock, and SSL_CERT_FILE"
            )
    if is_connection_loss(error):
        return _error(
            what,
            f"cannot be downloaded: no connection ({_first_line(error)}); check the network and HF_ENDPOINT, and pull "
            "again: what has arrived is kept",
        )
    if isinstance(error, hub.LocalEntryNotFoundError | hub.FileMetadataError):
        return _error(what, f"cannot be downloaded: {_first_line(error)}")
    if isinstance(error, OSError):
        return _error(what, f"cannot be stored: {_first_line(error)}")
    raise error


def is_connection_loss(error: BaseException) -> bool:
    """Whether a connection could not be made or broke: another try may help."""
    return any(
        isinstance(cause, ConnectionError | TimeoutError)
        or (type(cause).__module__.partition(".")[0] in _HTTP_LIBRARIES and not _status(cause))
        for cause in _chain(error)
    )


def disk_full(error: BaseException, what: str) -> ModelError | None:
    """Return an error if the reason is that there is no room; None if it is something else."""
    for cause in _chain(error):
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return _error(
                what, f"cannot be stored: {cause.strerror}; make room, then pull again: it goes on from there"
            )
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what led to it."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _status(error: BaseException) -> int:
    """Return the status of an answer of the server; 0 if there was none."""
    for cause in _chain(error):
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return 0


def _error(what: str, problem: str) -> ModelError:
    return ModelError(f"{what} {problem}", file=what)


def _page(what: str) -> str:
    return "https://huggingface.co/" + "/".join(what.split("/")[:2])


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
