"""`edge-vl models`: what can be run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_vl.cli.models_make import make
from edge_vl.errors import EngineUnavailable
from edge_vl.model_spec import ModelSpec
from edge_vl.models import find_model, model_names
from edge_vl.registry import engine_named, engine_names

__all__ = ["models"]

models = typer.Typer(help="Show the models on this machine.", no_args_is_help=True)

models.command("make")(make)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@models.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the models that have a short name."""
    found = [find_model(name) for name in model_names()]
    if as_json:
        print(json.dumps([{"name": model.name, "family": model.family, "path": str(model.path)} for model in found]))
        return
    for model in found:
        print(f"{model.name:<12} {model.family:<12} {_mib(_total_bytes(model.path)):>10}  {model.path}")


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
        if name not in {"engines", "files"}:
            print(f"{name:<16} {_as_text(value)}")
    for engine, known in facts["engines"].items():
        for name, value in known.items():
            print(f"{'engine':<16} {engine} {name.replace('_', ' ')}: {_as_text(value)}")
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


def _total_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _as_text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_as_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "not made yet" if value is None else str(value)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 1024**2:.2f} MiB"
