"""Model families: how a picture is cut into units and a conversation into a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from edge_vl.engine import Tokenizer
from edge_vl.errors import ModelError
from edge_vl.frame import Frame
from edge_vl.message import Message
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import ExactnessRules, ImageGrid, Plan

__all__ = ["Family", "family_of"]


class Family(Protocol):
    """Knows one kind of vision-language model; holds settings, no weights. Safe to call from any thread."""

    @property
    def rules(self) -> ExactnessRules:
        """What may be split, kept and rolled back."""
        ...

    def tile(self, frame: Frame) -> ImageGrid:
        """Resize a picture as the model's processor does and cut it into units."""
        ...

    def layout(self, messages: Sequence[Message], tokenizer: Tokenizer) -> Plan:
        """Lay a conversation out, up to where the model is to answer.

        Raises:
            ModelError: the template cannot be rendered, or the tokenizer lacks a marker that it needs.
        """
        ...


def family_of(model: ModelSpec) -> Family:
    """Return the family that a model belongs to.

    Raises:
        ModelError: no family knows this model type.
    """
    from edge_vl.families.idefics3 import Idefics3

    families: dict[str, Callable[[ModelSpec], Family]] = {"idefics3": Idefics3, "smolvlm": Idefics3}
    if model.family not in families:
        known = ", ".join(sorted(families))
        raise ModelError(
            f"{model.name}: model type {model.family!r} is not supported; supported: {known}",
            file=str(model.path / "config.json"),
        )
    return families[model.family](model)
