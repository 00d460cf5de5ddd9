"""What `edge-vl verify` found: the report and its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from edge_vl.agreement import LAMBDAS, LogitsAgreement, kv_loss
from edge_vl.kv_error import KVErrors

__all__ = [
    "MIN_ANSWERS_NEARLY",
    "MIN_TOKENS_NEARLY",
    "MIN_TOKENS_YES",
    "DifferentAnswer",
    "EmbedsAgreement",
    "Side",
    "Verdict",
    "Verification",
    "draw_layers",
]

Verdict = Literal["yes", "nearly", "no", "not tried"]

MIN_TOKENS_YES = 0.995
"""Agreement of next tokens from which on answers are the same, if every single answer is, too."""

MIN_TOKENS_NEARLY = 0.97
"""Agreement of next tokens from which on answers are nearly the same, if enough of the answers are, too."""

MIN_ANSWERS_NEARLY = 0.95
"""Share of answers that must be the same for that."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that were compared.

    Attributes:
        vision: engine and precision of what sees; empty for a model that reads text only.
        language: likewise of what speaks.
        kv: name of the KV policy; `auto` is the engine's own precision.
        weights_bytes: of both lanes; None where an engine cannot tell.
        kv_bytes: of the cache behind the longest prompt and its answer.
        notes: what the language model says about itself.
    """

    vision: str
    language: str
    kv: str
    weights_bytes: int | None
    kv_bytes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EmbedsAgreement:
    """How far image embeds are from the reference's.

    Attributes:
        num_units: tiles, thumbnails and pictures compared.
        error_mean: mean of the relative L2 difference over the units.
        error_max: its largest.
    """

    num_units: int
    error_mean: float
    error_max: float


@dataclass(frozen=True, slots=True)
class DifferentAnswer:
    """An answer that is not the reference's."""

    question: str
    reference: str
    candidate: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found.

    Attributes:
        model: its name.
        profile: id of the device profile.
        reference: the most faithful one.
        candidate: what was asked for.
        is_kv_compressed: the candidate's cache is quantised and the reference's is not.
        num_prompts: conversations.
        prompt_tokens: fewest and most entries of a prompt.
        compressed_share: smallest share of the entries of a conversation's cache that is quantised; None: the engine
            does not say. An engine without `layers` quantises every entry as it comes.
        num_answers: last questions answered.
        num_same: answers equal to the reference's, each model choosing freely.
        logits: agreement along the reference's answers.
        embeds: of the pictures; None where both see with the same encoder.
        layers: of the candidate's cache, on one prompt; None where there is nothing to see.
        different: answers that differ, the first few.
        notes: what is not as the profile wants it.
    """

    model: str
    profile: str
    reference: Side
    candidate: Side
    is_kv_compressed: bool
    num_prompts: int
    prompt_tokens: tuple[int, int]
    compressed_share: float | None
    num_answers: int
    num_same: int
    logits: LogitsAgreement
    embeds: EmbedsAgreement | None
    layers: KVErrors | None
    different: tuple[DifferentAnswer, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Whether answers are the same; `not tried` where the KV cache was to be quantised and nothing of it was."""
        if self.is_kv_compressed and self.compressed_share == 0 and self.embeds is None:
            return "not tried"
        if self.num_same == self.num_answers and self.logits.token_agreement >= MIN_TOKENS_YES:
            return "yes"
        is_near = self.logits.token_agreement >= MIN_TOKENS_NEARLY
        return "nearly" if is_near and self.num_same >= MIN_ANSWERS_NEARLY * self.num_answers else "no"

    @property
    def sentence(self) -> str:
        """The verdict in one line, with what it rests on."""
        if self.verdict == "not tried":
            return "same answers: not tried, since no prompt was long enough for anything to be compressed"
        return (
            f"same answers: {self.verdict} ({self.num_same} of {self.num_answers} answers, "
            f"{self.logits.token_agreement:.1%} of next tokens; yes: all and {MIN_TOKENS_YES:.1%}, "
            f"nearly: {MIN_ANSWERS_NEARLY:.0%} and {MIN_TOKENS_NEARLY:.0%})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        facts = asdict(self)
        layers = facts.pop("layers")
        facts["layers"] = None
        if self.layers is not None:
            losses = (kv_loss(layer.keys, layer.values) for layer in self.layers.layers)
            facts["layers"] = {
                **layers,
                "layers": [
                    {**entry, "loss": {f"{weight:g}": value for weight, value in zip(LAMBDAS, loss, strict=True)}}
                    for entry, loss in zip(layers["layers"], losses, strict=True)
                ],
            }
        facts["verdict"], facts["sentence"] = self.verdict, self.sentence
        return facts


def draw_layers(found: Verification, path: Path) -> None:
    """Write a heat map of the layers' errors.

    Raises:
        ValueError: there are no layers, or the file's ending is that of no picture.
        OSError: it cannot be written.
    """
    from edge_vl.heat_map import draw_heat_map

    if found.layers is None:
        raise ValueError("there are no layers to draw")
    columns: Mapping[str, list[float | None]] = {
        "attention logits": [layer.logit_error for layer in found.layers.layers],
        "keys": [layer.keys.error for layer in found.layers.layers],
        "values": [layer.values.error for layer in found.layers.layers],
    }
    losses = [kv_loss(layer.keys, layer.values) for layer in found.layers.layers]
    columns = {**columns, **{f"loss {weight:g}": [loss[n] for loss in losses] for n, weight in enumerate(LAMBDAS)}}
    draw_heat_map(
        f"{found.model}: KV cache in {found.candidate.kv}",
        list(columns),
        [f"layer {number}" for number in range(len(found.layers.layers))],
        [list(row) for row in zip(*columns.values(), strict=True)],
        f"{found.layers.num_compressed} of {found.layers.num_tokens} entries compressed. Logits: rms change. "
        "Keys, values: relative error. Loss: keys^2 + weight * values^2.",
    ).save(path)
