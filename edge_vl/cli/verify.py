"""`edge-vl verify`: whether answers stay the same with a compressed KV cache, or with other precisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_vl.cli import options
from edge_vl.cli.exit_codes import DIFFERENT
from edge_vl.cli.output import errors_as_json, print_notes
from edge_vl.errors import RequestError
from edge_vl.kv_policy import MAX_LOGIT_ERROR

if TYPE_CHECKING:
    from edge_vl.verify_report import Side, Verification

__all__ = ["verify"]

_SHOWN_CHARACTERS = 60


def verify(
    pictures: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PICTURE...]", help="Pictures to ask about; default: scenes that are drawn for it."),
    ] = None,
    model: options.Model = "bundled",
    kv: options.KV = "auto",
    prompts: Annotated[int, typer.Option(min=1, max=1000, help="Conversations, each with several questions.")] = 6,
    heat_map: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the errors of each layer, as PNG.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    profile: options.Profile = "auto",
    vision_engine: options.VisionEngine = "auto",
    language_engine: options.LanguageEngine = "auto",
    vision_dtype: options.VisionDtype = "auto",
    language_dtype: options.LanguageDtype = "auto",
    threads: options.Threads = None,
    context_length: options.ContextLength = None,
) -> None:
    """Compare what is asked for with the most faithful settings, on this device: do the answers stay the same?

    The exit code is 0 where they do, or nearly, and 8 where they do not or nothing was compressed.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from edge_vl.verify import verify as compare
    from edge_vl.verify_report import draw_layers

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    console = Console(stderr=True)
    with errors_as_json(is_wanted=as_json):
        if heat_map is not None:
            _check_file(heat_map)
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
            task = progress.add_task(f"loading {model}", total=1.0)
            found = compare(
                model,
                kv=kv,
                profile=profile,
                vision_engine=vision_engine,
                language_engine=language_engine,
                vision_dtype=vision_dtype,
                language_dtype=language_dtype,
                threads=threads,
                context_length=context_length,
                num_prompts=prompts,
                pictures=pictures or (),
                on_progress=lambda what, share: progress.update(task, description=f"{model}: {what}", completed=share),
            )
        if heat_map is not None and found.layers is not None:
            draw_layers(found, heat_map)
        if as_json:
            print(json.dumps(found.to_dict(), ensure_ascii=False))
        else:
            print_notes(found.notes)
            _show(found)
            if heat_map is not None:
                drawn = f"heat map: {heat_map}" if found.layers is not None else "no heat map: there are no layers"
                print(drawn)
    if found.verdict not in ("yes", "nearly"):
        raise typer.Exit(DIFFERENT)


def _check_file(path: Path) -> None:
    """Refuse a file that could not be written in the end."""
    if path.suffix.lower() != ".png":
        raise RequestError(
            f"a heat map is a PNG: give it a name that ends in .png, not {path.name!r}", field="heat_map"
        )
    if not path.absolute().parent.is_dir():
        raise RequestError(f"there is no folder {path.absolute().parent} for the heat map", field="heat_map")


def _show(found: Verification) -> None:
    from rich.console import Console
    from rich.markup import escape

    from edge_vl.verify_prompts import MIN_ENTRIES

    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{escape(found.model)}, profile {escape(found.profile)}", style="bold")
    for name, side in (("reference", found.reference), ("compared ", found.candidate)):
        console.print(escape(f"{name}: {_side(side)}"))
        for note in side.notes:
            console.print(escape(f"           {note}"))
    low, high = found.prompt_tokens
    console.print(
        f"{found.num_prompts} conversations, {found.num_answers} questions, prompts of {low} to {high} tokens"
    )
    if found.is_kv_compressed:
        console.print(_compressed(found))
    if low < MIN_ENTRIES:
        console.print(f"these prompts are shorter than {MIN_ENTRIES} tokens, for which the context has no room")
    if found.embeds is not None:
        embeds = found.embeds
        console.print(
            f"image embeds: relative error {embeds.error_mean:.4f} on average, {embeds.error_max:.4f} at most, "
            f"of {embeds.num_units} units"
        )
    logits = found.logits
    console.print(
        f"next tokens: {logits.token_agreement:.2%} the same of {logits.num_rows}; KL {logits.kl_mean:.2e} on average, "
        f"{logits.kl_max:.2e} at most; logits off by {logits.error:.4f}"
    )
    console.print(f"answers: {found.num_same} of {found.num_answers} the same")
    for one in found.different:
        console.print(escape(f"  {one.question} {_short(one.reference)!r} became {_short(one.candidate)!r}"))
    if found.layers is not None:
        console.print(_layers(found))
        console.print(
            f"logits: rms change of attention logits, guarded above {MAX_LOGIT_ERROR:g}; keys, values: relative error; "
            "L(w): keys^2 + w * values^2; coverage: of the codes' ranges, of keys or values"
        )
    elif found.is_kv_compressed:
        console.print("errors of single layers are left out: the engine does not show what its cache holds")
    console.print(escape(found.sentence), style="bold")


def _side(side: Side) -> str:
    sees = f"{side.vision} sees, " if side.vision else ""
    weights = "" if side.weights_bytes is None else f", weights {_mib(side.weights_bytes)}"
    return f"{sees}{side.language} speaks, KV cache {side.kv}; longest cache {_mib(side.kv_bytes)}{weights}"


def _compressed(found: Verification) -> str:
    saved = 1 - found.candidate.kv_bytes / found.reference.kv_bytes if found.reference.kv_bytes else 0.0
    share = found.compressed_share
    what = "every entry as it comes" if share is None else f"at least {share:.1%} of the entries of each"
    return f"compressed: {what}; the longest cache takes {saved:.1%} less memory than in {found.reference.kv}"


def _layers(found: Verification) -> object:
    from rich.table import Table

    from edge_vl.agreement import LAMBDAS, kv_loss

    layers = found.layers
    assert layers is not None
    table = Table(
        title=f"layers, on {layers.num_tokens} entries, {layers.num_compressed} of them compressed",
        title_justify="left",
    )
    for heading in ("layer", "logits", "keys", "values", *(f"L({weight:g})" for weight in LAMBDAS), "coverage"):
        table.add_column(heading, justify="right", no_wrap=True)
    for number, layer in enumerate(layers.layers):
        table.add_row(
            str(number),
            f"{layer.logit_error:.3f}",
            f"{layer.keys.error:.4f}",
            f"{layer.values.error:.4f}",
            *(f"{loss:.1e}" for loss in kv_loss(layer.keys, layer.values)),
            f"{min(layer.keys.coverage, layer.values.coverage):.4f}",
        )
    return table


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}\u2026"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.2f} MiB"
