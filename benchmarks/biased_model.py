"""The bundled model with large constants in its keys: the same function, made hard for quantised keys.

Models of the Qwen2 family have key projections with a large bias in their first and last layers: of norm 605 and 921
where the median layer has 22, spread over 512 channels (said in llama.cpp's issue 21385). Ways to quantise keys that
break such a model look fine on others. The model made here has a bias like that, before rotation, so that most of its
channels swing from one token to the next. Heads become twice as wide: a second set of channels repeats the queries, and
has for keys nothing but the same bias with its sign turned, at the same angles. The bias cancels out in the products of
queries and keys: in exact arithmetic the made model answers as the trained one does. What quantising takes from either
set of channels does not cancel.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edge_vl.made_models.idefics3_onnx import decoder
from edge_vl.made_models.weights import StoredWeights
from edge_vl.models import find_model
from tools.bundled_model.stored_weights import read_weights

__all__ = ["BIAS_NORMS", "make_biased_model"]

BIAS_NORMS: Mapping[str, float] = {"first": 300.0, "last": 460.0}
"""As large for each channel as reported: 605 and 921 over 512 channels, here 128."""

_DECODER = "decoder_model_merged.onnx"
_BIASES = "k_proj.bias"


def make_biased_model(folder: Path, norms: Mapping[str, float] = BIAS_NORMS, *, seed: int = 0) -> None:
    """Write the model's folder.

    Args:
        folder: where; made if it is not there.
        norms: L2 norms of the biases of the `first` and the `last` layer, over all heads, before they are doubled.
        seed: of the biases.
    """
    source = find_model("bundled").path
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    for path in (source / "onnx").iterdir():
        if path.name != _DECODER:
            shutil.copy(path, folder / "onnx")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    text = config["text_config"]
    half = text["head_dim"] // 2
    weights = read_weights(onnx.load(source / "onnx" / _DECODER), onnx.load(source / "onnx" / "embed_tokens.onnx"))
    wide = {name: _widened(name, values, text) for name, values in weights.items()}
    frequencies = (text["rope_theta"] ** -(np.arange(half) / half)).astype(np.float32)
    text["head_dim"] *= 2
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    path = folder / "onnx" / _DECODER
    decoder(StoredWeights(wide), config).save(path)
    graph = onnx.load(path)
    _replace(graph, "rotary_emb.inv_freq", np.concatenate([frequencies, frequencies]))
    random = np.random.default_rng(seed)
    for layer, norm in ((0, norms["first"]), (text["num_hidden_layers"] - 1, norms["last"])):
        bias = random.standard_normal((text["num_key_value_heads"], 2 * half)).astype(np.float32)
        bias *= norm / np.linalg.norm(bias)
        _add_bias(graph, f"/model/layers.{layer}/self_attn", layer, _interleave(bias, -bias).reshape(-1))
    onnx.checker.check_model(graph, full_check=True)
    onnx.save(graph, path)


def _widened(name: str, values: NDArray[np.float32], text: Mapping[str, int]) -> NDArray[np.float32]:
    """Return a parameter for heads of twice the width."""
    head_dim = text["head_dim"]
    kind = name.removesuffix(".weight").rpartition(".")[2]
    if kind == "o_proj":
        columns = values.reshape(len(values), -1, head_dim)
        return np.concatenate([columns, np.zeros_like(columns)], axis=2).reshape(len(values), -1)
    if kind not in ("q_proj", "k_proj", "v_proj"):
        return values
    rows = values.reshape(-1, head_dim, values.shape[1])
    if kind == "q_proj":  # the graph scales by a head's width, which is doubled
        rows = rows * np.float32(2**0.5)
    if kind == "v_proj":
        return np.concatenate([rows, np.zeros_like(rows)], axis=1).reshape(-1, values.shape[1])
    return _interleave(rows, rows if kind == "q_proj" else np.zeros_like(rows)).reshape(-1, values.shape[1])


def _interleave(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    """Put two sets of channels (heads, head_dim, ...) into one, so that pairs which turn together still do."""
    half = one.shape[1] // 2
    return np.concatenate([one[:, :half], other[:, :half], one[:, half:], other[:, half:]], axis=1)


def _replace(model: onnx.ModelProto, name: str, values: NDArray[np.float32]) -> None:
    """Give an initialiser other values."""
    (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(values, name))


def _add_bias(model: onnx.ModelProto, scope: str, layer: int, bias: NDArray[np.float32]) -> None:
    """Add a bias to the key projection of a layer."""
    name = f"model.text_model.layers.{layer}.self_attn.{_BIASES}"
    weight = f"model.text_model.layers.{layer}.self_attn.k_proj.MatMul.weight"
    ((place, product),) = ((place, node) for place, node in enumerate(model.graph.node) if weight in node.input)
    model.graph.initializer.append(numpy_helper.from_array(bias, name))
    total, product.output[0] = product.output[0], f"{scope}/k_proj/MatMul_output_0"
    addition = helper.make_node("Add", [product.output[0], name], [total], name=f"{scope}/k_bias")
    model.graph.node.insert(place + 1, addition)
