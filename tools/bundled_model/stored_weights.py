"""The bundled model's weights, read back from its ONNX files."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from edge_vl.made_models.onnx_graph import TRANSPOSED


def read_weights(*models: onnx.ModelProto) -> dict[str, NDArray[np.float32]]:
    """Return the parameters held by the initialisers of graphs, under transformers' names."""
    weights = {}
    for model in models:
        for tensor in model.graph.initializer:
            if tensor.data_type != TensorProto.FLOAT or not tensor.name.startswith("model."):
                continue
            values = numpy_helper.to_array(tensor)
            if tensor.name.endswith(TRANSPOSED):
                weights[tensor.name.removesuffix(TRANSPOSED) + ".weight"] = np.ascontiguousarray(values.T)
            else:
                weights[tensor.name] = values
    return weights
