"""The shelf: the folder in which pulled models are put together and taken away."""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from edge_vl.errors import ModelError
from edge_vl.hub_errors import disk_full
from edge_vl.pull_plan import PlannedFile, PullPlan
from edge_vl.pulled_model import MANIFEST, PulledFile, PulledModel, PulledSource, pulled_models, read_pulled_model

__all__ = ["put_on_shelf", "remove_from_shelf"]


def put_on_shelf(
    models_dir: Path, plan: PullPlan, paths: Mapping[str, Path], caches: Mapping[str, Path]
) -> PulledModel:
    """Put a model's folder together, and replace an earlier one in one step.

    Files of an earlier pull of the same commits are kept: pulling another precision adds it. Settings are copied, so
    that they may be changed; weights are hard links, so that they take no room twice and outlive the cache.

    Args:
        models_dir: the shelf.
        plan: what was pulled.
        paths: where each planned file lies in the cache, by its path in the model's folder.
        caches: the folder of each repository in the cache.

    Returns:
        The model, complete.

    Raises:
        ModelError: the folder cannot be written, or something else lies there.
    """
    folder = models_dir / plan.name
    sources = {
        repo.repo_id: PulledSource(repo.repo_id, repo.revision, repo.commit, repo.licence, str(caches[repo.repo_id]))
        for repo in plan.repos
    }
    files = {file.path: _pulled(file, paths[file.path]) for file in plan.files}
    contents = {path: paths[path].resolve() for path in files}
    for source, file in _earlier(folder):
        is_same = sources.setdefault(file.repo, source).commit == source.commit
        if is_same and file.path not in files and (folder / file.path).is_file():
            files[file.path] = file
            contents[file.path] = (folder / file.path).resolve()
    used = {file.repo for file in files.values()}
    pulled_at = datetime.now(UTC).isoformat(timespec="seconds")
    named = tuple(source for source in sources.values() if source.repo in used)
    model = PulledModel(plan.name, plan.title, folder, pulled_at, named, tuple(files.values()))
    draft = models_dir / f".{plan.name}.{uuid.uuid4().hex[:8]}"
    try:
        for path, content in contents.items():
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            _share(content, draft / path) if "/" in path else shutil.copyfile(content, draft / path)
        (draft / MANIFEST).write_text(model.to_json(), encoding="utf-8")
        _swap(draft, folder)
    except OSError as error:
        raise disk_full(error, plan.name) or ModelError(
            f"{folder} cannot be written: {error}", file=str(folder)
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return model


def remove_from_shelf(models_dir: Path, name: str, *, with_downloads: bool) -> int:
    """Remove a model's folder and, if wanted, what only it uses of the Hub's cache.

    Args:
        models_dir: the shelf.
        name: short name.
        with_downloads: whether to delete its files from the cache that other programs share, too.

    Returns:
        Bytes of its files that are left in the cache.

    Raises:
        ModelError: it cannot be deleted, or is no pulled model.
    """
    model = read_pulled_model(models_dir / name)
    pointers = set(_pointers(model))
    others = {pointer for other in pulled_models(models_dir) if other.name != name for pointer in _pointers(other)}
    try:
        shutil.rmtree(model.folder)
        if with_downloads:
            for pointer in pointers - others:
                blob = pointer.resolve()
                pointer.unlink(missing_ok=True)
                if blob.parent.name == "blobs":
                    blob.unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(f"{model.folder} cannot be removed: {error}", file=str(model.folder)) from error
    return sum(pointer.stat().st_size for pointer in pointers if pointer.is_file())


def _pointers(model: PulledModel) -> Iterator[Path]:
    """Yield the names that the Hub's cache gives a model's files."""
    sources = {source.repo: source for source in model.sources}
    for file in model.files:
        if source := sources.get(file.repo):
            yield Path(source.cache) / "snapshots" / source.commit / file.source


def _earlier(folder: Path) -> Iterator[tuple[PulledSource, PulledFile]]:
    """Yield the files of an earlier pull, and where they came from.

    Raises:
        ModelError: what is there was not pulled: it is a folder of the user's.
    """
    if not folder.exists() and not folder.is_symlink():
        return
    if not (folder / MANIFEST).is_file():
        raise ModelError(
            f"{folder} is there and was not made by `models pull` (it has no {MANIFEST}); move it away, or set "
            "EDGE_VL_MODELS_DIR to another folder",
            file=str(folder),
        )
    try:
        model = read_pulled_model(folder)
    except ModelError:  # damaged: replace it
        return
    sources = {source.repo: source for source in model.sources}
    yield from ((sources[file.repo], file) for file in model.files if file.repo in sources)


def _pulled(planned: PlannedFile, path: Path) -> PulledFile:
    file = planned.file
    sha256 = file.sha256 or hashlib.sha256(path.read_bytes()).hexdigest()
    return PulledFile(planned.path, planned.repo.repo_id, file.path, file.nbytes, sha256)


def _share(content: Path, place: Path) -> None:
    """Make a hard link, or else a symbolic one, or where the system or the file system has neither, a copy."""
    try:
        place.hardlink_to(content)
    except (OSError, NotImplementedError):
        try:
            place.symlink_to(content)
        except (OSError, NotImplementedError):
            shutil.copyfile(content, place)


def _swap(draft: Path, folder: Path) -> None:
    """Put a folder in another's place, and bring the old one back if that fails."""
    old = draft.with_name(f"{draft.name}.old")
    had_old = folder.exists()
    if had_old:
        folder.replace(old)
    try:
        draft.replace(folder)
    except OSError:
        if had_old:
            old.replace(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
