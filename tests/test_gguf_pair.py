"""Text models and vision encoders that belong together, and those that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge_vl.errors import ModelError
from edge_vl.gguf_header import GGUFHeader, GGUFTensor, read_gguf_header
from edge_vl.gguf_pair import check_pair, projector_width, text_width
from edge_vl.models import BUNDLED, find_model

GGUF = find_model(BUNDLED).path / "gguf"


def text(kind: str = "llama", width: int = 960, **more: Any) -> GGUFHeader:
    metadata = {"general.architecture": kind, f"{kind}.embedding_length": width}
    return GGUFHeader(Path("text.gguf"), metadata | _dotted(more), ())


def projector(
    kind: str = "idefics3", width: int = 960, *tensors: tuple[str, tuple[int, ...]], **more: Any
) -> GGUFHeader:
    metadata = {
        "general.architecture": "clip",
        "clip.projector_type": kind,
        "clip.vision.projection_dim": width,
    }
    made = tuple(GGUFTensor(name, shape, "f16", 0, 0) for name, shape in tensors)
    return GGUFHeader(Path("mmproj.gguf"), metadata | _dotted(more), made)


def _dotted(more: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in more.items()}


def test_the_bundled_files_are_a_pair() -> None:
    headers = [read_gguf_header(path) for path in sorted(GGUF.glob("*.gguf"))]
    [seeing] = [header for header in headers if header.is_projector]
    [speaking] = [header for header in headers if not header.is_projector]
    check_pair(speaking, seeing)
    assert text_width(speaking) == projector_width(seeing) == 256
    with pytest.raises(ModelError, match="is a vision encoder"):
        check_pair(seeing, seeing)
    with pytest.raises(ModelError, match="is a text model"):
        check_pair(speaking, speaking)


def test_another_width_is_refused() -> None:
    check_pair(text(), projector())
    with pytest.raises(ModelError, match="960 wide, and the vision encoder makes them 576 wide"):
        check_pair(text(), projector(width=576))


@pytest.mark.parametrize(
    ("kind", "tensor", "shape"),
    [
        ("idefics3", "mm.model.fc.weight", (12288, 960)),
        ("internvl", "mm.model.mlp.3.weight", (960, 960)),
        ("lfm2", "mm.2.weight", (2560, 960)),
        ("gemma3", "mm.input_projection.weight", (960, 1152)),
        ("qwen2.5vl_merger", "mm.2.bias", (960,)),
        ("resampler", "resampler.proj.weight", (960, 960)),
    ],
)
def test_a_width_is_taken_from_the_last_tensor_where_the_metadata_says_none(
    kind: str, tensor: str, shape: tuple[int, ...]
) -> None:
    assert projector_width(projector(kind, 0, (tensor, shape))) == 960


def test_deepstack_counts_on_both_sides() -> None:
    stacked = [(f"v.deepstack.{layer}.fc2.weight", (4096, 2048)) for layer in (5, 11, 17)]
    seeing = projector("qwen3vl_merger", 2048, ("mm.2.bias", (2048,)), *stacked)
    assert projector_width(seeing) == 4 * 2048
    check_pair(text("qwen3vl", 2048, qwen3vl__n_deepstack_layers=3), seeing)
    with pytest.raises(ModelError, match="2048 wide, and the vision encoder makes them 8192 wide"):
        check_pair(text("qwen3", 2048), seeing)


@pytest.mark.parametrize(
    ("kind", "seeing"),
    [("llama", "qwen2.5vl_merger"), ("qwen2", "gemma3"), ("qwen2vl", "idefics3"), ("lfm2", "idefics3")],
)
def test_another_kind_of_the_same_width_is_refused(kind: str, seeing: str) -> None:
    with pytest.raises(ModelError, match=rf"projector '{seeing}' is not made for a text model of the kind '{kind}'"):
        check_pair(text(kind), projector(seeing))


def test_a_kind_that_is_not_known_is_given_the_benefit_of_the_doubt() -> None:
    check_pair(text("newcomer"), projector("something"))
    check_pair(text("newcomer", 0), projector("something", 0))


@pytest.mark.parametrize(
    ("name", "other", "is_pair"),
    [
        ("SmolVLM", "SmolVLM", True),
        ("SmolVLM", "SmolVLM2", False),
        ("Qwen2.5-VL", "Qwen2.5VL 3B Instruct", True),
        ("model", "MiniCPM-V", True),
        ("", "MiniCPM-V", True),
        ("InternVL3", "SmolVLM", False),
    ],
)
def test_names_of_other_models_are_refused(name: str, other: str, is_pair: bool) -> None:
    speaking, seeing = text(general__basename=name), projector(general__basename=other)
    if is_pair:
        check_pair(speaking, seeing)
        return
    with pytest.raises(ModelError, match=rf"call themselves '{name}' and '{other}'"):
        check_pair(speaking, seeing)


def test_files_made_from_other_repositories_are_refused() -> None:
    def made_from(name: str) -> dict[str, Any]:
        return {"general__base_model__count": 1, "general__base_model__0__repo_url": f"https://huggingface.co/{name}"}

    check_pair(text(**made_from("a/Model")), projector(**made_from("A/model")))
    with pytest.raises(ModelError, match=r"made from https://huggingface.co/a/model and from .*/a/other"):
        check_pair(text(**made_from("a/Model")), projector(**made_from("a/other")))


def test_a_tuned_text_model_goes_with_the_encoder_of_its_base_where_names_are_not_asked() -> None:
    mine, base = text(general__basename="mine"), projector(general__basename="SmolVLM")
    with pytest.raises(ModelError, match="call themselves"):
        check_pair(mine, base)
    check_pair(mine, base, with_names=False)
    with pytest.raises(ModelError, match="not made for"):
        check_pair(text("qwen2"), base, with_names=False)
