"""A model spec: what to run, read from a folder in the Hugging Face layout or from GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_vl.config_values import parse_json_object, section
from edge_vl.errors import ModelError

__all__ = ["GGUF_FAMILY", "ModelSpec", "read_model_spec"]

GGUF_FAMILY = "gguf"
"""Family of a model without a configuration of its own: its engine lays it out."""

_MAX_JSON_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class ModelSpec:
    """What to run: files, tokenizer and family, nothing loaded yet.

    Attributes:
        name: short name, or the folder's name.
        path: the folder.
        family: `model_type` of its configuration, such as `idefics3` or `smolvlm`; `gguf` for GGUF files alone.
        config: `config.json`; `text_config` and `vision_config` are objects where they are there.
        preprocessor: `preprocessor_config.json`.
        generation: `generation_config.json`, empty if there is none.
        chat_template: text of the Jinja template.
        tokenizer_file: `tokenizer.json`, or the GGUF file.
        tokenizer_config: `tokenizer_config.json`, empty if there is none.
        file: the text model's GGUF file, where one was named; None: engines choose by precision.
    """

    name: str
    path: Path
    family: str
    config: Mapping[str, Any]
    preprocessor: Mapping[str, Any]
    generation: Mapping[str, Any]
    chat_template: str
    tokenizer_file: Path
    tokenizer_config: Mapping[str, Any]
    file: Path | None = None

    @property
    def has_vision(self) -> bool:
        """Whether it sees; otherwise it reads text only."""
        return bool(self.config.get("vision_config"))


def read_model_spec(folder: Path, *, name: str = "") -> ModelSpec:
    """Read the configuration files of a model folder.

    Args:
        folder: a folder in the Hugging Face layout, where the ONNX or GGUF files are looked for by the engines; or one
            with GGUF files alone; or a GGUF file of a text model.
        name: how to call it; the folder's name by default.

    Raises:
        ModelError: a file is missing, unreadable or not what it should be.
    """
    from edge_vl.gguf_spec import gguf_files, read_gguf_spec  # late: it builds a spec, too

    if folder.suffix == ".gguf" and folder.is_file():
        return read_gguf_spec(folder, name=name)
    if not folder.is_dir():
        raise ModelError(f"{folder} is neither a folder nor a GGUF file (*.gguf)", file=str(folder))
    if not (folder / "config.json").exists() and gguf_files(folder):
        return read_gguf_spec(folder, name=name)
    config = _read_json(folder / "config.json")
    family = config.get("model_type")
    if not isinstance(family, str):
        raise ModelError(f"{folder / 'config.json'} has no model_type", file=str(folder / "config.json"))
    for key in ("text_config", "vision_config"):
        section(config, key, folder / "config.json")
    tokenizer_file = folder / "tokenizer.json"
    if not tokenizer_file.is_file():
        raise ModelError(f"{folder} has no tokenizer.json", file=str(tokenizer_file))
    tokenizer_config = _read_json(folder / "tokenizer_config.json", optional=True)
    return ModelSpec(
        name=name or folder.resolve().name,
        path=folder,
        family=family,
        config=config,
        preprocessor=_read_json(folder / "preprocessor_config.json"),
        generation=_read_json(folder / "generation_config.json", optional=True),
        chat_template=_read_chat_template(folder, tokenizer_config),
        tokenizer_file=tokenizer_file,
        tokenizer_config=tokenizer_config,
    )


def _read_chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str:
    """Find the template where the various transformers versions put it, newest first."""
    text = folder / "chat_template.jinja"
    if text.is_file():
        return _read_text(text)
    for template in (
        _read_json(folder / "chat_template.json", optional=True).get("chat_template"),
        _read_json(folder / "processor_config.json", optional=True).get("chat_template"),
        tokenizer_config.get("chat_template"),
    ):
        if isinstance(template, str):
            return template
        if isinstance(template, list):  # older files: one template per use
            for entry in template:
                is_default = isinstance(entry, dict) and entry.get("name") == "default"
                if is_default and isinstance(entry.get("template"), str):
                    return str(entry["template"])
    raise ModelError(f"{folder} has no chat template (chat_template.jinja)", file=str(text))


def _read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not path.exists():
        return {}
    return parse_json_object(_read_text(path), path)


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ModelError(f"{path} is too large for a configuration file", file=str(path))
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent} has no {path.name}", file=str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}", file=str(path)) from error
