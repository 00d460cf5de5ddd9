"""`edge-vl models pull` and `models remove`: models from the Hugging Face Hub, kept for use without a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from edge_vl.pull_plan import PlannedFile, PullPlan

__all__ = ["pull", "remove"]


def pull(
    model: Annotated[str, typer.Argument(help="A short name (`models list --all`), or owner/name on the Hub.")],
    form: Annotated[str, typer.Option(help="auto, onnx or gguf.")] = "auto",
    vision_dtype: Annotated[
        str, typer.Option(help="Precision of the vision encoder's file: fp32, fp16, q8_0, ...")
    ] = "auto",
    language_dtype: Annotated[
        str, typer.Option(help="Precision of the language model's file: fp32, q8_0, q4_k_m, ...")
    ] = "auto",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit; default: the main branch.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be pulled, and the licence.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Pull a model from the Hugging Face Hub, to be used without a network afterwards.

    Needs: pip install huggingface_hub. Gated models need a token in HF_TOKEN.
    """
    from edge_vl import pull as pulling
    from edge_vl.cli.output import errors_as_json
    from edge_vl.wanted_by_profile import wanted_here

    with errors_as_json(is_wanted=as_json):
        wanted, profile = wanted_here()
        wanted = wanted.of_form(form).with_dtypes(vision=vision_dtype, language=language_dtype)
        hub = pulling.default_hub()
        plan = pulling.plan_pull(model, wanted=wanted, revision=revision, hub=hub)
        _show_plan(plan, profile)
        if dry_run:
            if as_json:
                print(json.dumps(_plan_facts(plan), ensure_ascii=False))
            return
        with _progress(plan) as on_progress:
            pulled = pulling.pull(plan, hub=hub, on_progress=on_progress)
        if as_json:
            print(json.dumps({"path": str(pulled.folder), **json.loads(pulled.to_json())}, ensure_ascii=False))
        else:
            print(pulled.folder)


def remove(
    model: Annotated[str, typer.Argument(help="A pulled model.")],
    downloads: Annotated[
        bool,
        typer.Option("--downloads", help="Delete its files from the Hub's cache, too, which other programs share."),
    ] = False,
) -> None:
    """Remove a pulled model."""
    from edge_vl.environment import models_dir
    from edge_vl.errors import ModelError
    from edge_vl.model_shelf import remove_from_shelf
    from edge_vl.models import BUNDLED, find_pulled

    pulled = None if model == BUNDLED else find_pulled(model)
    if pulled is None:
        why = "comes with edge-vl" if model == BUNDLED else "was not pulled"
        raise ModelError(f"{model!r} {why}, so it cannot be removed", file=model)
    left = remove_from_shelf(models_dir(), pulled.name, with_downloads=downloads)
    print(f"removed {pulled.name}")
    if left:
        why = "another model uses them" if downloads else "--downloads would have deleted them; `hf cache rm` still can"
        typer.echo(f"{_mib(left)} of its files stay in the Hub's cache: {why}", err=True)


def _show_plan(plan: PullPlan, profile: str) -> None:
    """Say on standard error where a model comes from, under which licence, and what will be pulled."""
    lines = [f"{plan.name}: {plan.title}; files as device profile {profile} wants them"]
    for repo in plan.repos:
        licence = repo.licence or "none named in its model card"
        gated = ", gated" if repo.is_gated else ""
        lines.append(f"from {repo.repo_id} at {repo.commit[:12]}; licence: {licence}{gated}")
    lines += [f"  {file.path:<48} {_mib(file.file.nbytes):>12}" for file in plan.files]
    lines += [f"  {'in all':<48} {_mib(plan.nbytes):>12}", *(f"note: {note}" for note in plan.notes)]
    typer.echo("\n".join(lines), err=True)


def _plan_facts(plan: PullPlan) -> dict[str, object]:
    return {
        "name": plan.name,
        "title": plan.title,
        "sources": [
            {"repo": repo.repo_id, "commit": repo.commit, "licence": repo.licence, "gated": repo.is_gated}
            for repo in plan.repos
        ],
        "files": [
            {"path": file.path, "repo": file.repo.repo_id, "bytes": file.file.nbytes, "dtype": file.dtype}
            for file in plan.files
        ],
        "bytes": plan.nbytes,
        "notes": list(plan.notes),
    }


@contextmanager
def _progress(plan: PullPlan) -> Iterator[Callable[[PlannedFile, int], None]]:
    """Draw one bar for all files on a terminal; draw nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    there: dict[str, int] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(plan.name, total=plan.nbytes)

        def on_progress(file: PlannedFile, num_bytes: int) -> None:
            there[file.path] = num_bytes
            progress.update(task, description=file.path, completed=sum(there.values()))

        yield on_progress


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 1024**2:.2f} MiB"
