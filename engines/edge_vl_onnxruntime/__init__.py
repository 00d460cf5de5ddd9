"""The ONNX Runtime engine: both lanes, from exports in the Hugging Face layout. Importing this loads no backend."""

from __future__ import annotations

from edge_vl_onnxruntime.engine import OnnxRuntimeEngine, engine
from edge_vl_onnxruntime.quantize import vision_int8_report

__all__ = ["OnnxRuntimeEngine", "engine", "vision_int8_report"]
