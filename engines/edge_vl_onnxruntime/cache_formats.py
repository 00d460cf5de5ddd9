"""From a KV policy to how caches are stored."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from edge_vl.kv_policy import KVPolicy, KVPrecision
from edge_vl_kernels.kv_format import CacheFormat, KVGeometry, LayerPrecision, PageFormat

if TYPE_CHECKING:
    from edge_vl_kernels.kv_format import Precision

__all__ = ["NUM_SINKS", "cache_format", "is_quantised"]

NUM_SINKS = 4
"""First entries that are never compressed, where anything is: much attention rests on them."""


def cache_format(
    policy: KVPolicy, geometry: KVGeometry, *, own: Precision = "f32", guarded: Collection[int] = ()
) -> CacheFormat:
    """Return how the caches of a model are stored.

    Args:
        policy: in what precision.
        geometry: of the model.
        own: precision where the policy leaves it to the engine.
        guarded: layers that are kept finer than the policy says, see `edge_vl.kv_policy.guarded_layers`.
    """
    text = policy.layers(geometry.num_layers, "text", own=own, guarded=guarded)
    image = policy.layers(geometry.num_layers, "image", own=own, guarded=guarded)
    kinds = (text,) if image == text else (text, image)
    precisions = {side for kind in kinds for layer in kind for side in (layer.keys, layer.values)}
    open_precision: Precision = "f32" if "f32" in precisions else "f16"
    return CacheFormat(
        pages=tuple(_page_format(geometry, kind) for kind in kinds),
        open=_page_format(geometry, (KVPrecision(open_precision, open_precision),) * geometry.num_layers),
        num_sinks=NUM_SINKS if precisions & {"int8", "int4"} else 0,
    )


def is_quantised(page_format: PageFormat) -> bool:
    """Say whether keys or values of any layer have 8 or 4 bits."""
    return any(side in ("int8", "int4") for layer in page_format.layers for side in (layer.keys, layer.values))


def _page_format(geometry: KVGeometry, layers: tuple[KVPrecision, ...]) -> PageFormat:
    return PageFormat(geometry, tuple(LayerPrecision(layer.keys, layer.values) for layer in layers))
