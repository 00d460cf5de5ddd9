"""What may be split and kept of pictures that llama.cpp cuts, by kind of projector."""

from __future__ import annotations

from edge_vl.plan import ExactnessRules

__all__ = ["rules_of"]

_CUT_INTO_TILES = frozenset(
    {
        *("adapter", "cogvlm", "deepseekocr", "deepseekocr2", "idefics3", "internvl", "janus_pro", "ldp", "ldpv2"),
        *("lfm2", "llama4", "minicpmv4_6", "mlp", "resampler", "step3vl"),
    }
)
"""Kinds whose pictures may become several chunks; each goes through the encoder on its own.

Rows of tiles that DeepSeek-OCR 2 merges are one chunk.
"""

_WHOLE = frozenset(
    {
        *("dots3note_v", "dots_ocr", "exaone4_5", "gemma3", "gemma3nv", "gemma4uv", "gemma4v", "glm4v", "glm5v"),
        *("granite4_vision", "kimik25", "kimivl", "lightonocr", "ling3vl", "mimovl", "minimax_m3", "muse-glimmer"),
        *("nemotron_v2_vl", "paddleocr", "phi4", "pixtral", "qwen2.5o", "qwen2.5vl_merger", "qwen2vl_merger"),
        *("qwen3vl_merger", "yasa2", "youtuvl"),
    }
)
"""Kinds whose pictures are always one chunk."""


def rules_of(projector_type: str, *, is_causal: bool) -> ExactnessRules:
    """Return what is exact for a kind of projector; the strictest rules for kinds that nobody has looked at.

    Text models of these kinds are decoders, so what stands before a picture never depends on it, and llama.cpp masks
    either causally or within a chunk of image tokens.

    Args:
        projector_type: what llama.cpp calls it.
        is_causal: llama.cpp attends causally to its image tokens.

    Source:
        llama.cpp, tools/mtmd: `mtmd_context::init_vision` and the preprocessors it chooses (which have a grid or an
        overview), `split_batch_to_chunk`, `mtmd_decode_use_non_causal`; llama-cpp-python 0.3.36.
    """
    if projector_type not in _CUT_INTO_TILES | _WHOLE:
        return ExactnessRules()
    return ExactnessRules(
        encode_unit="tile" if projector_type in _CUT_INTO_TILES else "image",
        prefill_cut="any" if is_causal else "block",
        text_prefix_ok=True,
        rollback="any",
    )
