"""The two GGUF files of the bundled model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge_vl.made_models.idefics3_gguf import write_text, write_vision
from edge_vl.made_models.weights import Weights

TEXT_FILE = "edge-vl-bundled-text-f16.gguf"
VISION_FILE = "mmproj-edge-vl-bundled-f16.gguf"

_TITLE = "edge_vl bundled"


def export_gguf(weights: Weights, config: dict[str, Any], model_folder: Path, folder: Path) -> None:
    """Write the text and the vision file; the tokenizer comes from `tokenizer.json` of the model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / TEXT_FILE, _TITLE, weights, config, model_folder, "f16")
    write_vision(folder / VISION_FILE, _TITLE, weights, config, model_folder, "f16")
