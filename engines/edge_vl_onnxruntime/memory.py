"""What a lane takes, told from the headers of its files before anything is loaded.

The factors were measured with ONNX Runtime 1.32 on the CPU: weights lie in memory once, mapped or repacked for matrix
products; half-precision ones are widened; attention that is not one operator holds its scores twice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from edge_vl.config_values import section, whole_number
from edge_vl.engine import LaneMemory
from edge_vl.errors import ModelError
from edge_vl.kv_policy import KVPolicy
from edge_vl.model_spec import ModelSpec
from edge_vl.passes import MAX_PREFILL_TOKENS
from edge_vl_kernels.kv_format import KVGeometry
from edge_vl_onnxruntime.cache_formats import cache_format
from edge_vl_onnxruntime.decoder_feeds import RAMP_BYTES
from edge_vl_onnxruntime.decoder_graph import COUNTS, PAST
from edge_vl_onnxruntime.files import ModelFile
from edge_vl_onnxruntime.kv_cache import shared_capacity
from edge_vl_onnxruntime.language import MAX_ROWS
from edge_vl_onnxruntime.onnx_file import FLOAT16, OnnxHeader, read_onnx_header

__all__ = ["cut_language_memory", "language_memory", "vision_memory"]

_WIDE = 4  # bytes of a number in CPU arithmetic: half precision is widened
_GRAPH_BYTES = 12 << 20  # nodes, plans and code of one large session: 10.9 MiB for a decoder of 30 layers
_TOKENIZER_FACTOR = 13  # memory by bytes of tokenizer.json: 22 MiB for 1.7 MiB
_INT8_MAKING_FACTOR = 4.5  # peak by bytes of the fp32 graph while its int8 copy is made: 1545 MiB for 357 MiB
_MAX_SIZE = 1 << 24


def vision_memory(model: ModelSpec, file: ModelFile, *, making_int8: bool = False) -> LaneMemory:
    """Return what the vision lane takes.

    Args:
        model: its configuration has the dimensions.
        file: the graph to load.
        making_int8: it is the fp32 graph, and its int8 copy is still to be made.

    Raises:
        ModelError: the file or the configuration cannot be used.
    """
    header = read_onnx_header(file.path)
    config_file = model.path / "config.json"
    vision = section(model.config, "vision_config", config_file)

    def size(key: str, default: int = 1) -> int:
        return whole_number(vision, key, config_file, low=1, high=_MAX_SIZE, default=default)

    side, hidden = size("image_size", 512), size("hidden_size", 768)
    heads, ffn = size("num_attention_heads", 12), size("intermediate_size", 4 * hidden)
    num_patches = max(1, side // size("patch_size", 16)) ** 2
    scores_bytes = heads * num_patches**2 * _WIDE
    row_bytes = num_patches * _WIDE
    step_bytes = max(2 * scores_bytes + 6 * row_bytes * hidden, row_bytes * (5 * ffn + 3 * hidden))
    weights_bytes, loading_bytes = _weights(header)
    if making_int8:
        loading_bytes = int(_INT8_MAKING_FACTOR * header.nbytes)
        weights_bytes = header.nbytes // 4
    return LaneMemory(
        weights_bytes=weights_bytes,
        kv_bytes=0,
        activation_bytes=max(_GRAPH_BYTES + step_bytes, loading_bytes - weights_bytes),
        picture_bytes=_picture_bytes(model, side),
        dtype="int8" if making_int8 else file.dtype,
        file=str(file.path),
    )


def language_memory(
    model: ModelSpec, decoder: ModelFile, embed: Path, context_length: int, *, is_shared: bool
) -> LaneMemory:
    """Return what a decoder that runs whole takes with one sequence as long as the context.

    Args:
        model: its configuration has the dimensions.
        decoder: the graph to load.
        embed: the graph of the token embeddings.
        context_length: most entries of the sequence.
        is_shared: the graph writes its cache in place; otherwise every run returns a longer copy.

    Raises:
        ModelError: a file or the configuration cannot be used.
    """
    language = _Language.read(model, decoder, embed, context_length)
    heads, head_dim, rows = language.heads, language.head_dim, language.rows
    entry_bytes = _entry_bytes(language.header, language.kv_heads, head_dim)
    step_bytes = language.step_bytes
    if not is_shared:  # one operator does not hold the scores
        scores_bytes = heads * rows * context_length * _WIDE
        repeated_bytes = heads * head_dim * context_length * _WIDE
        mask_bytes = rows * context_length * _WIDE
        step_bytes += 2 * scores_bytes + 3 * repeated_bytes + 2 * mask_bytes
    step_bytes += (1 if _keeps_one(language.header) else rows) * language.vocab_size * _WIDE
    kv_bytes = entry_bytes * (shared_capacity(context_length, context_length) if is_shared else context_length)
    # A cache that grows, or moves to larger buffers, is there twice for a moment.
    second_bytes = entry_bytes * (shared_capacity(context_length // 2, context_length) if is_shared else context_length)
    return language.memory(kv_bytes, second_bytes + step_bytes)


def cut_language_memory(
    model: ModelSpec,
    decoder: ModelFile,
    embed: Path,
    context_length: int,
    policy: KVPolicy,
    guarded: Collection[int] | None = None,
) -> LaneMemory:
    """Return what a decoder in pieces takes with one sequence as long as the context.

    Args:
        model: its configuration has the dimensions.
        decoder: the graph to load.
        embed: the graph of the token embeddings.
        context_length: most entries of the sequence.
        policy: in what precision they are kept.
        guarded: layers that are kept finer where the policy leaves that to measurements; None: all, because it is not
            known yet.

    Raises:
        ModelError: a file or the configuration cannot be used.
    """
    language = _Language.read(model, decoder, embed, context_length)
    pasts = [entry for name, entry in language.header.inputs.items() if PAST.fullmatch(name)]
    if not pasts or len(pasts[0].shape) != 4:
        raise ModelError(f"{decoder.path} has no inputs past_key_values.N.key/value", file=str(decoder.path))
    geometry = KVGeometry(
        num_layers=len(pasts) // 2,
        num_query_heads=language.heads,
        num_kv_heads=pasts[0].shape[1] or language.kv_heads,
        head_dim=pasts[0].shape[3] or language.head_dim,
    )
    if not policy.wants_errors:
        guarded = ()
    elif guarded is None:
        guarded = range(geometry.num_layers)
    stored = cache_format(policy, geometry, own="f16" if pasts[0].dtype == FLOAT16 else "f32", guarded=guarded)
    page_bytes = max(page.nbytes for page in stored.pages)
    kv_bytes = stored.num_closed(context_length) * page_bytes + stored.open.nbytes + stored.sinks_nbytes
    # Buffers between pieces, and what the C library keeps of the memory of one piece when the next one is run.
    step_bytes = 2 * language.step_bytes + stored.open.nbytes + page_bytes + language.vocab_size * _WIDE
    return language.memory(kv_bytes, step_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class _Language:
    """What is known of a language model.

    Attributes:
        model: its configuration has the dimensions.
        decoder: the graph to load.
        header: its header.
        embed: header of the graph of the token embeddings.
        context_length: most entries of a sequence.
        rows: of the largest step.
        hidden: width of a row.
        ffn: width within a layer.
        heads: query heads.
        kv_heads: key/value heads.
        head_dim: width of a head.
        vocab_size: length of a row of logits.
    """

    model: ModelSpec
    decoder: ModelFile
    header: OnnxHeader
    embed: OnnxHeader
    context_length: int
    rows: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int

    @classmethod
    def read(cls, model: ModelSpec, decoder: ModelFile, embed: Path, context_length: int) -> Self:
        """Read it from headers and configuration."""
        config_file = model.path / "config.json"
        text: Mapping[str, Any] = section(model.config, "text_config", config_file) or model.config

        def size(key: str, default: int) -> int:
            return whole_number(text, key, config_file, low=1, high=_MAX_SIZE, default=default)

        hidden, heads = size("hidden_size", 1), size("num_attention_heads", 1)
        return cls(
            model=model,
            decoder=decoder,
            header=read_onnx_header(decoder.path),
            embed=read_onnx_header(embed),
            context_length=context_length,
            rows=min(MAX_ROWS, context_length, MAX_PREFILL_TOKENS + _tokens_per_unit(model)),
            hidden=hidden,
            ffn=size("intermediate_size", 4 * hidden),
            heads=heads,
            kv_heads=size("num_key_value_heads", heads),
            head_dim=size("head_dim", max(1, hidden // heads)),
            vocab_size=size("vocab_size", 1),
        )

    @property
    def step_bytes(self) -> int:
        """What a layer holds during the largest step, attention not counted."""
        return self.rows * _WIDE * (4 * self.ffn + 6 * self.hidden)

    def memory(self, kv_bytes: int, step_bytes: int) -> LaneMemory:
        """Return the sum: caches, what the largest step takes, and everything that does not depend on them."""
        weights_bytes, loading_bytes = _weights(self.header)
        weights_bytes, loading_bytes = weights_bytes + self.embed.nbytes, loading_bytes + self.embed.nbytes
        tokenizer_bytes = _TOKENIZER_FACTOR * self.model.tokenizer_file.stat().st_size
        always_bytes = 2 * _GRAPH_BYTES + RAMP_BYTES * self.context_length + tokenizer_bytes
        return LaneMemory(
            weights_bytes=weights_bytes,
            kv_bytes=kv_bytes,
            activation_bytes=always_bytes + max(step_bytes, loading_bytes - weights_bytes - kv_bytes),
            picture_bytes=0,
            dtype=self.decoder.dtype,
            file=str(self.decoder.path),
            context_length=self.context_length,
        )


def _weights(header: OnnxHeader) -> tuple[int, int]:
    """Return bytes of the weights at work, and while they are loaded: a weight that is repacked is there twice."""
    half_bytes = header.weights_bytes(FLOAT16)
    weights_bytes = header.nbytes + half_bytes
    widest = 2 if half_bytes else 1
    return weights_bytes, weights_bytes + half_bytes + widest * header.largest_weight_bytes


def _entry_bytes(header: OnnxHeader, kv_heads: int, head_dim: int) -> int:
    """Return bytes of one cache entry in all layers, from the graph's own inputs where they say it."""
    total = 0
    for name, entry in header.inputs.items():
        if PAST.fullmatch(name) and len(entry.shape) == 4:
            num_bytes = 2 if entry.dtype == FLOAT16 else 4
            total += (entry.shape[1] or kv_heads) * (entry.shape[3] or head_dim) * num_bytes
    if not total:
        raise ModelError(f"{header.path} has no inputs past_key_values.N.key/value", file=str(header.path))
    return total


def _keeps_one(header: OnnxHeader) -> bool:
    return any(name in header.inputs for name in COUNTS)


def _tokens_per_unit(model: ModelSpec) -> int:
    """Return the image tokens of a tile; 0 for a model that reads text only."""
    if not model.has_vision:
        return 0
    config_file = model.path / "config.json"
    vision = section(model.config, "vision_config", config_file)
    side = whole_number(vision, "image_size", config_file, low=1, high=_MAX_SIZE)
    patch = whole_number(vision, "patch_size", config_file, low=1, high=_MAX_SIZE)
    factor = whole_number(model.config, "scale_factor", config_file, low=1, high=_MAX_SIZE, default=1)
    return math.ceil(side / patch / factor) ** 2 if side and patch else 0


def _picture_bytes(model: ModelSpec, side: int) -> int:
    """Return bytes of a resized picture, its tiles, and one tile as the graph takes it: numbers and a mask."""
    file = model.path / "preprocessor_config.json"
    longest = whole_number(section(model.preprocessor, "size", file), "longest_edge", file, low=1, high=1 << 16)
    picture_bytes = 3 * max(longest, side) ** 2
    return 2 * picture_bytes + side**2 * (3 * _WIDE + 1)
