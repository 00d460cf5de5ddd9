"""Pulling a model from the Hugging Face Hub: see what there is, choose, make sure that it fits, fetch, check, keep."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Callable
from pathlib import Path

from edge_vl.catalog import CatalogEntry, catalog
from edge_vl.environment import models_dir, read_environment
from edge_vl.errors import ModelError, RequestError
from edge_vl.gguf_header import read_gguf_header
from edge_vl.gguf_pair import check_pair
from edge_vl.hub import Hub
from edge_vl.hub_repo import HubRepo
from edge_vl.model_shelf import put_on_shelf
from edge_vl.pull_plan import PlannedFile, PullPlan, plan_files
from edge_vl.pulled_model import PulledModel
from edge_vl.wanted_files import WantedFiles

__all__ = ["OnProgress", "default_hub", "plan_pull", "pull"]

OnProgress = Callable[[PlannedFile, int], None]
"""Is told how many bytes of a file are there."""

_SPARE_BYTES = 64 * 1024**2
_DEFAULT = WantedFiles()


def default_hub() -> Hub:
    """Return the Hub that the environment names.

    Raises:
        ModelError: its library is not installed.
        RequestError: a variable makes no sense.
    """
    return Hub(read_environment().hub_endpoint)


def plan_pull(
    model: str, *, wanted: WantedFiles = _DEFAULT, revision: str | None = None, hub: Hub | None = None
) -> PullPlan:
    """See what a model's repositories hold, and choose. Nothing is downloaded yet but lists.

    Args:
        model: a short name of the catalog, or `owner/name` of a repository.
        wanted: what the device wants.
        revision: branch, tag or commit; None: the main branch.
        hub: where to look; None: `default_hub`.

    Raises:
        RequestError: the name makes no sense, or a revision is given for a model that two repositories hold.
        ModelError: there is no such model, it cannot be read, or has nothing that is wanted.
    """
    entry = _entry(model)
    if revision and len(entry.repos) > 1:
        raise RequestError(
            f"{model} has files in {' and '.join(entry.repos)}; name one of them with --revision", field="revision"
        )
    hub = hub or default_hub()
    repos: list[HubRepo] = [hub.repo(repo, revision) for repo in entry.repos]
    return plan_files(entry.name, entry.title, repos, wanted)


def pull(
    plan: PullPlan,
    *,
    hub: Hub | None = None,
    folder: Path | None = None,
    on_progress: OnProgress = lambda file, num_bytes: None,
) -> PulledModel:
    """Fetch what was planned and put it together as a model that `find_model` finds without a network.

    What has arrived is kept when this is interrupted, and another call goes on from there.

    Args:
        plan: of `plan_pull`.
        hub: where to fetch; None: `default_hub`.
        folder: the shelf for pulled models; None: as the environment says.
        on_progress: is told how far a file is; called from this thread.

    Raises:
        ModelError: there is no room, a file cannot be had or is damaged, or a vision encoder does not fit its text
            model. The message says what to do.
    """
    hub = hub or default_hub()
    folder = folder or models_dir()
    _check_room(plan, hub)
    paths = {}
    for file in plan.files:

        def on_bytes(num_bytes: int, file: PlannedFile = file) -> None:
            on_progress(file, num_bytes)

        paths[file.path] = hub.fetch(file.repo, file.file, on_bytes)
    for text, projector in plan.pairs:
        check_pair(read_gguf_header(paths[text.path]), read_gguf_header(paths[projector.path]))
    caches = {repo.repo_id: hub.folder(repo) for repo in plan.repos}
    return put_on_shelf(folder, plan, paths, caches)


def _entry(model: str) -> CatalogEntry:
    """Return the catalog's entry, or one for a repository that it does not have."""
    known = catalog()
    if model in known:
        return known[model]
    if model.count("/") == 1:
        return CatalogEntry(model.replace("/", "--"), model, repo=model)
    close = difflib.get_close_matches(model.lower(), known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    raise ModelError(
        f"no model is known as {model!r}; {hint} (or name a repository of the Hugging Face Hub: owner/name)", file=model
    )


def _check_room(plan: PullPlan, hub: Hub) -> None:
    """See before the first byte that all will find room.

    Raises:
        ModelError: there is too little.
    """
    needed = sum(hub.missing_bytes(file.repo, file.file) for file in plan.files)
    place = next(folder for folder in (hub.cache, *hub.cache.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if needed and needed + _SPARE_BYTES > free:
        raise ModelError(
            f"{plan.name} needs {needed / 1024**2:.0f} MiB more, and {free / 1024**2:.0f} MiB are free in {place}; "
            "make room, choose another precision, or set HF_HUB_CACHE to a folder on a larger disk",
            file=str(hub.cache),
        )
