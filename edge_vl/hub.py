"""The Hugging Face Hub: what repositories hold, and their files, into the cache that all its users share.

This is the only module that talks to it, through `huggingface_hub`. Large files do not take that library's own way: it
begins again when a process ends too early, and lets wrong bytes into the cache. Here what has arrived stays beside the
place of the cache's entry until all of it is there and has the right checksum.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from edge_vl.errors import EdgeVLError, ModelError, RequestError
from edge_vl.hub_errors import explain, is_connection_loss
from edge_vl.hub_repo import HubFile, HubRepo

__all__ = ["Hub", "OnBytes"]

OnBytes = Callable[[int], None]
"""Is told how many bytes of a file are there."""

_INSTALL = "pip install huggingface_hub"
_API_TIMEOUT_S = 30.0
_PIECE_BYTES = 1 << 20
_MAX_FRUITLESS = 1
_HEX = re.compile(r"[0-9a-f]+")
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class Hub:
    """Reads repositories and fetches files. Used by one thread at a time; others may share the cache.

    Args:
        endpoint: address of a mirror; empty: the library's default.
        cache: the shared cache; None: where the library has it.

    Raises:
        ModelError: the library is not installed.
        RequestError: the endpoint is no address.
    """

    def __init__(self, endpoint: str = "", cache: Path | None = None) -> None:
        try:
            import huggingface_hub
        except ImportError as error:
            raise ModelError(
                f"pulling models needs the package huggingface_hub ({error}); install it with: {_INSTALL}",
                file="huggingface_hub",
            ) from error
        if endpoint and not endpoint.startswith(("https://", "http://")):
            raise RequestError(f"HF_ENDPOINT is {endpoint!r}; it should begin with https://", field="HF_ENDPOINT")
        self._endpoint = endpoint or None
        self._api = huggingface_hub.HfApi(endpoint=self._endpoint, library_name="edge_vl")
        self.cache = Path(huggingface_hub.constants.HF_HUB_CACHE if cache is None else cache).expanduser().absolute()

    def repo(self, repo_id: str, revision: str | None = None) -> HubRepo:
        """Read what a repository holds.

        Args:
            repo_id: `owner/name`.
            revision: branch, tag or commit; None: the main branch.

        Raises:
            RequestError: that is no repository's name.
            ModelError: it cannot be read; the message says why and what to do.
        """
        if not _REPO_ID.fullmatch(repo_id):
            raise RequestError(f"{repo_id!r} is not the name of a repository: owner/name", field="model")
        what = f"{repo_id} ({revision})" if revision else repo_id
        try:
            info = self._api.model_info(repo_id, revision=revision, files_metadata=True, timeout=_API_TIMEOUT_S)
            files = tuple(_file(repo_id, sibling) for sibling in info.siblings or () if _is_plain(sibling.rfilename))
        except EdgeVLError:
            raise
        except Exception as error:
            raise explain(error, what) from error
        commit = info.sha or ""
        if not _HEX.fullmatch(commit):
            raise ModelError(f"{what}: the server does not say which commit that is", file=repo_id)
        return HubRepo(repo_id, revision or "main", commit, _licence(info), bool(info.gated), files)

    def missing_bytes(self, repo: HubRepo, file: HubFile) -> int:
        """Return how many bytes of a file are still to come."""
        if self._pointer(repo, file).is_file() or (file.sha256 and self._blob(repo, file).is_file()):
            return 0
        there = _size(_part(self._blob(repo, file))) if file.sha256 else 0
        return max(file.nbytes - there, 0)

    def fetch(self, repo: HubRepo, file: HubFile, on_bytes: OnBytes = lambda num_bytes: None) -> Path:
        """Bring a file into the cache, unless it is there, and check its content.

        A large file goes on from where an earlier call was interrupted.

        Returns:
            Its path in the cache.

        Raises:
            ModelError: it cannot be had, or its content is wrong; then it is not kept.
        """
        import huggingface_hub

        what = f"{repo.repo_id}/{file.path}"
        blob = self._blob(repo, file) if file.sha256 else None
        try:
            with _without_bars():
                if blob is not None:
                    self._fetch_blob(repo, file, blob, on_bytes)
                path = Path(
                    huggingface_hub.hf_hub_download(
                        repo.repo_id,
                        file.path,
                        revision=repo.commit,
                        cache_dir=self.cache,
                        endpoint=self._endpoint,
                        library_name="edge_vl",
                    )
                )
            if blob is None or path.resolve() != blob.resolve():
                _check(path, file, what)
        except EdgeVLError:
            raise
        except Exception as error:
            raise explain(error, what) from error
        on_bytes(file.nbytes)
        return path

    def _fetch_blob(self, repo: HubRepo, file: HubFile, blob: Path, on_bytes: OnBytes) -> None:
        """Make sure that the cache's entry for a content is there and right."""
        from huggingface_hub.utils import WeakFileLock

        lock = self.cache / ".locks" / self.folder(repo).name / f"{file.sha256}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        blob.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock):
            if blob.is_file():
                if _digest(blob, file) == file.sha256:
                    return
                blob.unlink()  # damaged since it was stored
            part = _part(blob)
            self._download(repo, file, part, on_bytes)
            _check(part, file, f"{repo.repo_id}/{file.path}")
            part.replace(blob)

    def _download(self, repo: HubRepo, file: HubFile, part: Path, on_bytes: OnBytes) -> None:
        """Append to a file what it lacks, and go on while more arrives; the library waits and tries a few times."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        url = hf_hub_url(repo.repo_id, file.path, revision=repo.commit, endpoint=self._endpoint)
        headers = {**build_hf_headers(library_name="edge_vl"), "Accept-Encoding": "identity"}
        num_fruitless = 0
        while True:
            there = _size(part)
            if there > file.nbytes:
                part.unlink()
                there = 0
            try:
                with part.open("ab") as out:
                    sink: Any = _Counted(out, on_bytes)
                    http_get(url, sink, resume_size=there, headers=headers, expected_size=file.nbytes)
                return
            except Exception as error:
                if _is_unusable(error):
                    part.unlink(missing_ok=True)
                    if there:
                        continue
                num_fruitless = num_fruitless + 1 if _size(part) <= there else 0
                if not is_connection_loss(error) or num_fruitless > _MAX_FRUITLESS:
                    raise

    def folder(self, repo: HubRepo) -> Path:
        """Return the repository's folder in the cache, perhaps not there yet."""
        return self.cache / f"models--{repo.repo_id.replace('/', '--')}"

    def _blob(self, repo: HubRepo, file: HubFile) -> Path:
        return self.folder(repo) / "blobs" / file.sha256

    def _pointer(self, repo: HubRepo, file: HubFile) -> Path:
        return self.folder(repo) / "snapshots" / repo.commit / file.path


class _Counted:
    """A file that tells how much of it there is. The library writes to it, and cuts it when the server starts over."""

    def __init__(self, file: IO[bytes], on_bytes: OnBytes) -> None:
        self._file = file
        self._on_bytes = on_bytes

    def write(self, piece: bytes) -> int:
        written = self._file.write(piece)
        self._on_bytes(self._file.tell())
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _file(repo_id: str, sibling: Any) -> HubFile:
    """Take over what the server says about a file, as far as it may be trusted."""
    sha256 = sibling.lfs.sha256 if sibling.lfs else ""
    nbytes = (sibling.lfs.size if sibling.lfs else None) or sibling.size
    if not isinstance(nbytes, int) or nbytes < 0 or (sha256 and not (_HEX.fullmatch(sha256) and len(sha256) == 64)):
        raise ModelError(f"{repo_id}: the server gives no size or checksum of {sibling.rfilename!r}", file=repo_id)
    return HubFile(sibling.rfilename, nbytes, sha256, sibling.blob_id or "")


def _is_plain(path: str) -> bool:
    """Whether a path stays inside the repository on every system; a server may say anything."""
    return all(part not in {"", ".", ".."} for part in path.split("/")) and not set('\\:*?"<>|\0') & set(path)


def _licence(info: Any) -> str:
    """Return what the model card says, or the tags that are made from it."""
    card = info.card_data.to_dict() if info.card_data else {}
    licence = card.get("license")
    if licence == "other":
        licence = card.get("license_name") or licence
    if isinstance(licence, list):
        licence = ", ".join(map(str, licence))
    tags = (tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:"))
    return str(licence or next(tags, ""))


def _check(path: Path, file: HubFile, what: str) -> None:
    """Refuse wrong content, and delete it."""
    wanted = file.sha256 or file.git_sha1
    found = _digest(path, file)
    if path.stat().st_size != file.nbytes or (wanted and found != wanted):
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise ModelError(
            f"{what} arrived damaged: its checksum is {found[:12]}..., and should be {wanted[:12]}...; it was deleted: "
            "pull again, and if that does not help, ask who runs the server",
            file=what,
        )


def _digest(path: Path, file: HubFile) -> str:
    """Return the checksum that a file's repository keeps: SHA-256, or what Git calls a small file."""
    digest = hashlib.sha256()
    if not file.sha256:
        digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as content:
        while piece := content.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _part(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.edge_vl.incomplete")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _is_unusable(error: Exception) -> bool:
    """Whether what is there cannot be gone on with: it is longer or other than what the server has."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status == 416 or "Consistency check failed" in str(error)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep the library from drawing progress bars of its own."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where its own variable wants bars
        disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
