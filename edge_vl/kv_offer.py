"""What an engine can do of KV policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from edge_vl.kv_policy import KVPolicy, LayerGuard, Precision

__all__ = ["KVOffer"]


@dataclass(frozen=True, slots=True)
class KVOffer:
    """What an engine can do of KV policies.

    Attributes:
        precisions: of keys and values.
        parts: what may be said besides `text`: `image`, `first_layers`, `last_layers`.
    """

    precisions: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()

    @staticmethod
    def of(known: Mapping[str, Any]) -> KVOffer:
        """Read what `Engine.describe` says of it."""
        return KVOffer(tuple(known.get("kv_precisions", ())), tuple(known.get("kv_parts", ())))

    def lacks(self, policy: KVPolicy) -> str:
        """Say what of a policy is not offered, to be read behind "it has"; empty if all of it is."""
        missing = [word for word in get_args(Precision) if word in policy.precisions - set(self.precisions)]
        if missing:
            return f"no KV cache in {' or '.join(missing)}, only in {', '.join(('auto', *self.precisions))}"
        if policy.differs_by_kind and "image" not in self.parts:
            return "one KV cache for text and image tokens alike, so image cannot be said"
        for key in ("first_layers", "last_layers"):
            if isinstance(getattr(policy, key), LayerGuard) and key not in self.parts:
                return f"one precision for the KV cache of all layers, so {key} cannot be said"
        return ""
