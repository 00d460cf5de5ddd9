"""The llama.cpp engine: both lanes, from GGUF files. Importing this loads no backend."""

from __future__ import annotations

from edge_vl_llama_cpp.engine import LlamaCppEngine, engine

__all__ = ["LlamaCppEngine", "engine"]
