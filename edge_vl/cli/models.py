"""`edge-vl models`: what can be run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_vl.cli.models_make import make
from edge_vl.cli.models_pull import pull, remove
from edge_vl.errors import EdgeVLError, EngineUnavailable, ModelError
from edge_vl.model_spec import ModelSpec
from edge_vl.models import BUNDLED, find_model, find_pulled, model_names
from edge_vl.registry import engine_named, engine_names

__all__ = ["models"]

_ONLY_IN_JSON = frozenset({"model", "source", "recipe", "blake2b"})  # of a file that was made: long, and for programs

models = typer.Typer(help="Show, pull, make and remove models.", no_args_is_help=True)

models.command("pull")(pull)
models.command("make")(make)
models.command("remove")(remove)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@models.command("list")
def list_models(
    show_all: Annotated[bool, typer.Option("--all", help="Also those that can be pulled by a short name.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the models that have a short name: size, licence, where they are from, and their folders."""
    rows = [_listed(name) for name in model_names()]
    if show_all:
        from edge_vl.catalog import catalog

        here = {row["name"] for row in rows}
        rows += [
            {"name": entry.name, "title": entry.title, "from": list(entry.repos), "pulled": False}
            for entry in catalog().values()
            if entry.name not in here
        ]
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        size = _mib(row["bytes"]) if "bytes" in row else "to pull"
        tail = row.get("problem") or row.get("path") or row["title"]
        source = ", ".join(row["from"])
        family, licence = row.get("family", ""), row.get("licence", "")
        print(f"{row['name']:<{width}}  {family:<9} {size:>11}  {licence:<12} {source}  {tail}".rstrip())


def _listed(name: str) -> dict[str, Any]:
    """Return what the list says of one model; `problem` where it cannot be used."""
    pulled = None if name == BUNDLED else find_pulled(name)
    row: dict[str, Any] = {"name": name, "licence": "Apache-2.0", "from": ["edge-vl"], "pulled": pulled is not None}
    if pulled is not None:
        row["licence"] = pulled.licence
        row["from"] = [f"{source.repo}@{source.commit[:12]}" for source in pulled.sources]
        row |= {"bytes": pulled.nbytes, "path": str(pulled.folder), "title": pulled.title}
    try:
        model = find_model(name)
    except ModelError as error:
        return {**row, "problem": str(error)}
    return {**row, "family": model.family, "bytes": _total_bytes(model.path), "path": str(model.path)}


@models.command("info")
def info(
    model: Annotated[str, typer.Argument(help="A short name, or a folder.")] = "bundled",
    as_json: AsJson = False,
) -> None:
    """Show a model's files, sizes and settings."""
    facts = model_facts(find_model(model))
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
        return
    for name, value in facts.items():
        if name not in {"engines", "files", "memory"}:
            print(f"{name:<16} {_as_text(value)}")
    for engine, known in facts["engines"].items():
        for name, value in known.items():
            print(f"{'engine':<16} {engine} {name.replace('_', ' ')}: {_as_text(value)}")
    for line in _memory_lines(facts["memory"]):
        print(f"{'memory':<16} {line}")
    for file in facts["files"]:
        print(f"{'file':<16} {file['name']:<40} {_mib(file['bytes']):>10}")


def model_facts(model: ModelSpec) -> dict[str, Any]:
    """Collect what there is to know about a model without loading it."""
    text: Mapping[str, Any] = model.config.get("text_config") or {}
    vision: Mapping[str, Any] = model.config.get("vision_config") or {}
    size = model.preprocessor.get("size")
    files = sorted(path for path in model.path.rglob("*") if path.is_file())
    return {
        "name": model.name,
        "family": model.family,
        "path": str(model.path),
        "text": {
            name: text.get(key)
            for name, key in (
                ("layers", "num_hidden_layers"),
                ("hidden_size", "hidden_size"),
                ("heads", "num_attention_heads"),
                ("kv_heads", "num_key_value_heads"),
                ("vocabulary", "vocab_size"),
                ("context", "max_position_embeddings"),
            )
        },
        "vision": {
            name: vision.get(key)
            for name, key in (
                ("layers", "num_hidden_layers"),
                ("hidden_size", "hidden_size"),
                ("tile", "image_size"),
                ("patch", "patch_size"),
            )
        },
        "longest_edge": size.get("longest_edge") if isinstance(size, Mapping) else None,
        "engines": {name: dict(facts) for name, facts in _engine_facts(model)},
        "memory": _memory_plan(model),
        "files": [{"name": str(path.relative_to(model.path)), "bytes": path.stat().st_size} for path in files],
    }


def _engine_facts(model: ModelSpec) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what each engine that can be imported knows about a model."""
    for name in engine_names():
        try:
            facts = engine_named(name).describe(model)
        except EngineUnavailable:
            continue  # `edge-vl doctor` tells why
        if facts:
            yield name, facts


def _memory_plan(model: ModelSpec) -> dict[str, Any] | None:
    """Return what it would take if it were opened as it is; None if it cannot be."""
    from edge_vl.memory_plan import plan_memory
    from edge_vl.profile_choice import decide

    try:
        decision = decide(model)
    except EdgeVLError:
        return None  # `edge-vl profiles explain` tells why
    engines = {f"{lane.lane}_engine": lane.engine.name for lane in decision.lanes}
    return engines | plan_memory(model, decision).as_json()


def _memory_lines(plan: Mapping[str, Any] | None) -> Iterator[str]:
    """Write a plan for people: a line for each lane, and one for the sum and what it may take."""
    if plan is None:
        yield "cannot be told: no engine can run it here"
        return
    for lane in ("vision", "language"):
        memory = plan[lane]
        if memory is not None:
            parts = ", ".join(
                f"{part} {_mib(memory[f'{key}_bytes'])}"
                for part, key in (
                    ("weights", "weights"),
                    ("KV cache", "kv"),
                    ("steps", "activation"),
                    ("pictures", "picture"),
                )
                if memory[f"{key}_bytes"]
            )
            context = f", context {memory['context_length']}" if memory["context_length"] else ""
            yield f"{lane} ({plan[f'{lane}_engine']} {memory['dtype']}{context}): {parts}"
        elif f"{lane}_engine" in plan:
            yield f"{lane} ({plan[f'{lane}_engine']}): not known"
    budget = "unknown" if plan["budget_bytes"] is None else f"{_mib(plan['budget_bytes'])} ({plan['budget_source']})"
    yield f"needs {_mib(plan['needed_bytes'])}, may take {budget}" + ("" if plan["fits"] else ": too large")


def _total_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _as_text(value: object) -> str:
    if isinstance(value, dict):
        shown = {key: item for key, item in value.items() if key not in _ONLY_IN_JSON}
        return ", ".join(f"{key.replace('_', ' ')} {_as_text(item)}" for key, item in shown.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "none" if value is None else str(value)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 1024**2:.2f} MiB"
