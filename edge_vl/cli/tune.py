"""`edge-vl tune`: measure what prefill passes of various sizes cost, and keep it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from edge_vl.cli import options
from edge_vl.cli.output import errors_as_json, print_notes

if TYPE_CHECKING:
    from edge_vl.tuning import Tuning

__all__ = ["tune"]


def tune(
    model: options.Model = "bundled",
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds whose median counts.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    profile: options.Profile = "auto",
    vision_engine: options.VisionEngine = "auto",
    language_engine: options.LanguageEngine = "auto",
    vision_dtype: options.VisionDtype = "auto",
    language_dtype: options.LanguageDtype = "auto",
    kv: options.KV = "auto",
    threads: options.Threads = None,
    context_length: options.ContextLength = None,
) -> None:
    """Measure prefill passes of 16 to 256 tokens on this device and keep the table for every later run.

    Give the engines, precisions and threads that will be used: the table counts for these alone.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from edge_vl.tuning import tune as measure

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    console = Console(stderr=True)
    with errors_as_json(is_wanted=as_json):
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
            task = progress.add_task(f"loading {model}", total=1.0)
            tuning = measure(
                model,
                profile=profile,
                vision_engine=vision_engine,
                language_engine=language_engine,
                vision_dtype=vision_dtype,
                language_dtype=language_dtype,
                kv=kv,
                threads=threads,
                context_length=context_length,
                num_rounds=rounds,
                on_progress=lambda share: progress.update(task, description=f"measuring {model}", completed=share),
            )
        if as_json:
            print(json.dumps(tuning.to_dict(), ensure_ascii=False))
            return
        print_notes(tuning.notes)
        _show(tuning)


def _show(tuning: Tuning) -> None:
    from rich.console import Console
    from rich.table import Table

    key = tuning.key
    sees = f"{key.vision_engine} {key.vision_dtype} sees, " if key.vision_engine else ""
    title = f"{key.model}, profile {tuning.profile}: {sees}{key.language_engine} {key.language_dtype} speaks"
    table = Table(title=f"{title}; {key.threads} threads", title_justify="left")
    for heading in ("past", "chunk", "ms/token", "of best", "waits for", "logits error"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in tuning.costs.chunk_table:
        table.add_row(
            str(row.past),
            str(row.num_tokens),
            f"{row.token_s * 1000:.3f}",
            f"{row.utilisation:.0%}",
            f"{row.alignment_tokens:.1f}",
            f"{row.logits_error:.1e}",
        )
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    console.print(
        f"Medians of {tuning.num_rounds}. past: entries in the cache. waits for: tokens between the end of an image\n"
        "unit and that of its chunk, on average. logits error: against one pass, relative to their range."
    )
    for past in sorted({row.past for row in tuning.costs.chunk_table}):
        alone = tuning.chosen(past=past, is_answering=False)
        meanwhile = tuning.chosen(past=past, is_answering=True)
        console.print(f"behind {past} entries a pass takes {alone} tokens, and {meanwhile} while an answer runs")
    console.print(
        "kept for later runs" if tuning.file is not None else "NOT kept: the cache folder cannot be written to"
    )
