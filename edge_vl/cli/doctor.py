"""`edge-vl doctor`: what works here, what does not, and what to do about it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from edge_vl.cli.exit_codes import ANSWERED, UNAVAILABLE
from edge_vl.doctor import Diagnosis, diagnose

__all__ = ["doctor"]


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show the device, the engines with their real errors, and what would make things better."""
    diagnosis = diagnose()
    if as_json:
        print(json.dumps(diagnosis.to_dict(), ensure_ascii=False))
    else:
        _show(diagnosis)
    raise typer.Exit(ANSWERED if diagnosis.can_answer else UNAVAILABLE)


def _show(diagnosis: Diagnosis) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=True, highlight=False)
    machine = diagnosis.machine

    def line(name: str, value: str) -> None:
        console.print(f"[bold]{name:<12}[/bold]{escape(value)}")

    line("edge-vl", f"{diagnosis.version}, {machine.python}, {machine.os}")
    line("board", (machine.board or "no device tree") + (f", Jetson Linux {machine.l4t}" if machine.l4t else ""))
    line(
        "processor",
        f"{machine.cpu or machine.arch}, {machine.cores} usable cores, {' '.join(machine.flags) or 'no known flags'}",
    )
    for gpu in machine.gpus:
        memory = "the machine's memory" if gpu.is_unified else f"{_gib(gpu.memory_total_bytes)} of memory"
        kind = f", compute capability {gpu.compute_capability}" if gpu.compute_capability else ""
        line("accelerator", f"{gpu.name}, {memory}{kind} (from {gpu.source})")
    if not machine.gpus:
        line("accelerator", "no GPU was found")
    line("memory", f"{_gib(machine.memory_available_bytes)} free of {_gib(machine.memory_total_bytes)}")
    line("kernels", _kernels(diagnosis.kernels))
    line("cache", diagnosis.cache_dir or "no folder; set EDGE_VL_CACHE_DIR")
    for name, status in diagnosis.engines.items():
        if status.is_available:
            line("engine", f"{name} {status.version}, devices: {', '.join(status.devices)}")
        else:
            line("engine", f"{name} is not available: {status.reason}")
        for note in status.notes:
            line("", note)
    for name, trouble in diagnosis.models.items():
        line("model", f"{name}: {trouble or 'ready'}")
    line("profile", f"{diagnosis.profile or 'none'}: {diagnosis.profile_reason}")
    for use, flags in diagnosis.features.items():
        line("feature", f"{flags}: {use}")
    for lane, summary in diagnosis.lanes.items():
        line("chosen", f"{lane} of the bundled model: {summary}")
    for advice in diagnosis.advice:
        line("advice", advice)
    line("verdict", "ready to answer" if diagnosis.can_answer else "cannot answer yet; see the advice above")


def _kernels(kernels: dict[str, Any]) -> str:
    """Say in one line which kernels run, and why no better ones do."""
    if not kernels["compiled"]:
        return f"{kernels['isa']}: {kernels['reason']}"
    threads = kernels["threads"]
    asked_for = "" if kernels["asked_for"] == "auto" else ", as EDGE_VL_ISA says"
    missing = "".join(f"; no {isa}: {why}" for isa, why in kernels["missing"].items())
    return f"{kernels['isa']}, compiled{asked_for}, {threads} thread{'s' * (threads > 1)}{missing}"


def _gib(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else f"{num_bytes / 1024**3:.1f} GiB"
