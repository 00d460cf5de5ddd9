"""Model families: how a picture is cut into units and a conversation into a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from edge_vl.engine import Tokenizer, VisionSpec
from edge_vl.errors import ModelError
from edge_vl.frame import Frame
from edge_vl.ladder import Rung
from edge_vl.message import Message
from edge_vl.model_spec import GGUF_FAMILY, ModelSpec
from edge_vl.plan import ExactnessRules, ImageGrid, Plan

__all__ = ["Family", "family_of"]


class Family(Protocol):
    """Knows one kind of vision-language model; holds settings, no weights. Safe to call from any thread."""

    @property
    def rules(self) -> ExactnessRules:
        """What may be split, kept and rolled back."""
        ...

    def check_lanes(self, vision: VisionSpec | None, tokenizer: Tokenizer) -> None:
        """Refuse a vision encoder or a tokenizer that does not fit the model's configuration.

        Raises:
            ModelError: it says what differs.
        """
        ...

    def rungs(self, frame: Frame) -> tuple[Rung, ...]:
        """Return the settings that a picture can be cut with.

        Returns:
            The model's own first, each with fewer image tokens than the one before. The last has one unit, unless the
            family cannot bring a picture of this shape down to one.

        Raises:
            ImageError: the picture cannot be cut with the model's own setting.
        """
        ...

    def tile(self, frame: Frame, longest_edge: int | None = None) -> ImageGrid:
        """Resize a picture as the model's processor does and cut it into units.

        Args:
            frame: the picture.
            longest_edge: of a rung; None: the model's own setting.

        Raises:
            ImageError: the picture cannot be used.
        """
        ...

    def layout(self, messages: Sequence[Message], tokenizer: Tokenizer) -> Plan:
        """Lay a conversation out, up to where the model is to answer.

        Raises:
            ModelError: the template cannot be rendered, or the tokenizer lacks a marker that it needs.
        """
        ...


def family_of(model: ModelSpec) -> Family | None:
    """Return the family that a model belongs to.

    Returns:
        None for a model that only its engine knows: GGUF files, whose vision encoder cuts pictures itself.

    Raises:
        ModelError: no family knows this model type, and there are no GGUF files.
    """
    from edge_vl.families.idefics3 import Idefics3
    from edge_vl.gguf_spec import gguf_files

    families: dict[str, Callable[[ModelSpec], Family]] = {"idefics3": Idefics3, "smolvlm": Idefics3}
    if model.family in families:
        return families[model.family](model)
    if model.family == GGUF_FAMILY or gguf_files(model.path):
        return None
    known = ", ".join(sorted(families))
    raise ModelError(
        f"{model.name}: model type {model.family!r} is supported through GGUF files only, and there are none; "
        f"without them: {known}",
        file=str(model.path / "config.json"),
    )
