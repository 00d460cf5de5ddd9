"""Write the bundled model's files: `python -m tools.bundled_model.export`.

Without options the weights come from the ONNX files that are there, so that a checkout can write every file again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from edge_vl.made_models.idefics3_onnx import FILES, export_onnx
from edge_vl.made_models.weights import StoredWeights
from tools.bundled_model.configuration import write_configurations
from tools.bundled_model.gguf_export import export_gguf
from tools.bundled_model.stored_weights import read_weights

MODEL_FOLDER = Path(__file__).parents[2] / "edge_vl" / "bundled_model"
MAX_BYTES = 24 * 2**20


def onnx_weights(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Return the parameters of a model folder's ONNX files, under transformers' names."""
    return read_weights(*(onnx.load(folder / "onnx" / name) for name in FILES))


def export(weights: dict[str, NDArray[np.float32]], folder: Path) -> int:
    """Write configuration, ONNX and GGUF into a folder that holds `tokenizer.json`.

    Returns:
        The folder's size in bytes.

    Raises:
        ValueError: the folder became larger than the package may carry.
    """
    config = write_configurations(folder)
    stored = StoredWeights(weights)
    export_onnx(stored, config, folder / "onnx")
    for name in FILES:
        onnx.checker.check_model(str(folder / "onnx" / name), full_check=True)
    export_gguf(stored, config, folder, folder / "gguf")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > MAX_BYTES:
        raise ValueError(f"{folder} holds {size} bytes; at most {MAX_BYTES} may be shipped")
    return size


def main() -> None:
    """Export once."""
    parser = argparse.ArgumentParser(description="Write the bundled model's ONNX and GGUF files.")
    parser.add_argument("--weights", type=Path, help="safetensors with transformers' names; default: the ONNX files")
    parser.add_argument("--folder", type=Path, default=MODEL_FOLDER)
    options = parser.parse_args()
    if options.weights:
        from safetensors.numpy import load_file

        weights = load_file(options.weights)
    else:
        weights = onnx_weights(options.folder)
    size = export(weights, options.folder)
    print(f"{options.folder}: {size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
