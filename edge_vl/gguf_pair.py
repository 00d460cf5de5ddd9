"""Whether a text model and a vision encoder (mmproj) in GGUF files belong together.

Source:
    The constructor in tools/mtmd/mtmd.cpp and `clip_n_mmproj_embd` in tools/mtmd/clip.cpp of ggml-org/llama.cpp, which
    compare the two widths while they load. Differs: only headers are read; kinds and names are compared, too, since
    models of one width are many.
"""

from __future__ import annotations

import re

from edge_vl.errors import ModelError
from edge_vl.gguf_header import GGUFHeader

__all__ = ["check_pair", "projector_width", "text_width"]

_OUTPUT = {
    "idefics3": ("mm.model.fc.weight", 1),
    "internvl": ("mm.model.mlp.3.weight", 1),
    "lfm2": ("mm.2.weight", 1),
    "gemma3": ("mm.input_projection.weight", 0),
    "qwen2vl_merger": ("mm.2.bias", 0),
    "qwen2.5vl_merger": ("mm.2.bias", 0),
    "qwen3vl_merger": ("mm.2.bias", 0),
    "resampler": ("resampler.proj.weight", 0),
}
"""The tensor whose dimension is the width of the image embeds, by projector type."""

_TEXT_KINDS = {
    "idefics3": ("llama", "smollm"),
    "lfm2": ("lfm2",),
    "gemma3": ("gemma3",),
    "qwen2vl_merger": ("qwen2vl",),
    "qwen2.5vl_merger": ("qwen2vl",),
    "qwen3vl_merger": ("qwen3",),
}
"""Beginnings of the architectures that a projector type is made for, where that is settled."""

_DEEPSTACK = re.compile(r"v\.deepstack\.\d+\.fc2\.weight")
_SAYS_NOTHING = ("model", "ggmlmodel", "snapshot", "checkpoint")


def check_pair(text: GGUFHeader, projector: GGUFHeader, *, with_names: bool = True) -> None:
    """Refuse two files that are not of one model.

    Args:
        text: of the text model.
        projector: of the vision encoder.
        with_names: compare what they call themselves, too. A person may pair a tuned text model with the vision encoder
            that it was tuned with, whatever the two are called.

    Raises:
        ModelError: it says what differs.
    """
    if not projector.is_projector or text.is_projector:
        wrong = text if text.is_projector else projector
        kind = "a vision encoder (mmproj)" if text.is_projector else "a text model"
        raise ModelError(f"{wrong.path.name} is {kind}, which is not what was wanted there", file=str(wrong.path))
    pair = f"{text.path.name} and {projector.path.name} are not of one model"
    wanted, made = text_width(text), projector_width(projector)
    if wanted and made and wanted != made:
        raise ModelError(
            f"{pair}: the text model takes image embeds {wanted} wide, and the vision encoder makes them {made} wide; "
            "take both from the same repository",
            file=str(projector.path),
        )
    kinds = _TEXT_KINDS.get(_projector_type(projector), ())
    if kinds and text.architecture and not text.architecture.startswith(kinds):
        raise ModelError(
            f"{pair}: the vision encoder's projector {_projector_type(projector)!r} is not made for a text model of "
            f"the kind {text.architecture!r}",
            file=str(projector.path),
        )
    if not with_names:
        return
    sources, others = _base_models(text), _base_models(projector)
    if sources and others and not sources & others:
        raise ModelError(
            f"{pair}: they were made from {', '.join(sorted(sources))} and from {', '.join(sorted(others))}",
            file=str(projector.path),
        )
    name, other = (str(header.metadata.get("general.basename", "")) for header in (text, projector))
    if not _may_be_same(_name_words(name), _name_words(other)):
        raise ModelError(f"{pair}: they call themselves {name!r} and {other!r}", file=str(projector.path))


def text_width(text: GGUFHeader) -> int:
    """Return how wide a text model takes image embeds; 0 if its file does not say.

    Models with deepstack take a row of several: one for the first layer and one for each of some later layers.
    """
    return text.number("embedding_length") * (1 + text.number("n_deepstack_layers"))


def projector_width(projector: GGUFHeader) -> int:
    """Return how wide a vision encoder makes image embeds; 0 if its file does not say."""
    name, axis = _OUTPUT.get(_projector_type(projector), ("", 0))
    output = next((tensor for tensor in projector.tensors if tensor.name == name), None)
    width = output.shape[axis] if output and axis < len(output.shape) else projector.number("vision.projection_dim")
    return width * (1 + sum(bool(_DEEPSTACK.fullmatch(tensor.name)) for tensor in projector.tensors))


def _projector_type(projector: GGUFHeader) -> str:
    """Return its type; files for sight and hearing have one of each."""
    return str(
        projector.metadata.get("clip.vision.projector_type") or projector.metadata.get("clip.projector_type", "")
    )


def _base_models(header: GGUFHeader) -> frozenset[str]:
    """Return the repositories that a file was made from."""
    count = header.metadata.get("general.base_model.count", 0)
    urls = (header.metadata.get(f"general.base_model.{index}.repo_url") for index in range(min(_whole(count), 16)))
    return frozenset(url.rstrip("/").lower() for url in urls if isinstance(url, str) and url)


def _name_words(name: str) -> tuple[str, ...]:
    words = tuple(re.findall(r"[a-z0-9.]+", name.lower()))
    return () if "".join(words) in _SAYS_NOTHING else words


def _may_be_same(words: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether one name begins with the other: `Qwen2.5-VL` and `Qwen2.5VL 3B`, but not `SmolVLM2` and `SmolVLM`."""
    if not words or not others:
        return True
    return any(
        "".join(short) == "".join(long[:count])
        for short, long in ((words, others), (others, words))
        for count in range(1, len(long) + 1)
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
