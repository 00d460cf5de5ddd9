"""What is written, what is refused, and that nothing is left behind."""

from __future__ import annotations

import json
import shutil
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

import edge_vl
from edge_vl.errors import ModelError, RequestError
from edge_vl.made_models.configuration import idefics3_config
from edge_vl.made_models.folder import FACTS_FILE, make_model
from edge_vl.made_models.parameters import idefics3_parameters, internvl3_text_parameters, internvl3_vision_parameters
from edge_vl.made_models.shapes import SHAPES, find_shape
from edge_vl.made_models.sizes import expected_bytes
from edge_vl.models import find_model
from tests.made_models.small_shapes import SMALL_INTERNVL, SMALL_SMOLVLM

SMALLEST = replace(SMALL_INTERNVL, text=replace(SMALL_INTERNVL.text, num_layers=1))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_is_a_model_of_the_idefics3_family(smolvlm: Path) -> None:
    spec = find_model(smolvlm)
    assert spec.family == "idefics3"
    assert spec.preprocessor["size"]["longest_edge"] == SMALL_SMOLVLM.longest_edge
    assert spec.config["text_config"]["vocab_size"] == 49280
    assert sorted(path.name for path in (smolvlm / "gguf").iterdir()) == [
        "mmproj-small-smolvlm-f16.gguf",
        "mmproj-small-smolvlm-q8_0.gguf",
        "small-smolvlm-text-f16.gguf",
        "small-smolvlm-text-q4_0.gguf",
        "small-smolvlm-text-q8_0.gguf",
    ]


def test_readme_and_facts_say_that_the_weights_are_random(smolvlm: Path) -> None:
    facts = json.loads((smolvlm / FACTS_FILE).read_text())
    assert facts["weights"] == "random"
    assert facts["shape"] == "small-smolvlm"
    assert facts["edge_vl"] == edge_vl.__version__
    text = (smolvlm / "README.md").read_text()
    assert "This model knows nothing" in text
    assert "edge-vl models make small-smolvlm --longest-edge 200 --seed 0" in text


def test_equal_seeds_give_equal_files_and_others_do_not(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        make_model(SMALLEST, tmp_path / name, dtypes=["f16"], seed=seed)
    one, same, other = (contents(tmp_path / name) for name in ("one", "same", "other"))
    assert one == same
    assert all(one[name] != other[name] for name in one if name.endswith(".gguf"))


def test_only_the_dtypes_that_are_wanted_are_written(tmp_path: Path) -> None:
    shares: list[float] = []
    made = make_model(
        SMALLEST, tmp_path / "made", dtypes=["q4_0", "q8_0"], on_progress=lambda file, share: shares.append(share)
    )
    assert sorted(path.name for path in (made.folder / "gguf").iterdir()) == [
        "mmproj-small-internvl-q8_0.gguf",
        "small-internvl-text-q4_0.gguf",
        "small-internvl-text-q8_0.gguf",
    ]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    assert made.num_bytes == sum(map(len, contents(made.folder).values()))


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [(["q5_0"], "unknown dtype 'q5_0'"), (["fp32"], "GGUF only"), ([], "at least one"), (["q4_0"], "f16 or q8_0 too")],
)
def test_dtypes_that_make_no_sense_are_refused(tmp_path: Path, dtypes: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make_model(SMALLEST, tmp_path / "made", dtypes=dtypes)


@pytest.mark.parametrize("edge", [-1, 0, 99, 4097])
def test_a_longest_edge_below_a_tile_or_above_the_limit_is_refused(tmp_path: Path, edge: int) -> None:
    with pytest.raises(RequestError, match="100 \\(one tile\\) to 4096"):
        make_model(SMALL_SMOLVLM, tmp_path / "made", longest_edge=edge)
    with pytest.raises(RequestError, match="does not scale"):
        make_model(SMALL_INTERNVL, tmp_path / "made", longest_edge=edge)


def test_a_folder_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine").write_text("mine")
    with pytest.raises(ModelError, match="is there already"):
        make_model(SMALLEST, tmp_path / "made")
    assert contents(tmp_path) == {"made/mine": b"mine"}


def test_too_little_space_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12 - 10**9, 10**9))
    with pytest.raises(ModelError, match=r"has 1.0 GB free and the model needs \d+\.\d GB"):
        make_model(SHAPES["smolvlm-2.2b"], tmp_path / "made")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["onnx", "gguf"])
def test_a_missing_package_is_named_with_its_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModelError, match=f"package {package} is needed.*pip install gguf onnx"):
        make_model(SMALL_SMOLVLM, tmp_path / "made")
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupt(file: str, share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_model(SMALLEST, tmp_path / "made", on_progress=interrupt)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_a_model_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be written"):
        make_model(SMALLEST, tmp_path / "file" / "made")


@pytest.mark.parametrize("name", ["smolvlm", "internvl"])
def test_the_expected_size_is_never_below_the_real_one(request: pytest.FixtureRequest, name: str) -> None:
    folder: Path = request.getfixturevalue(name)
    if name == "smolvlm":
        parameters = idefics3_parameters(json.loads((folder / "config.json").read_text()))
    else:
        parameters = internvl3_text_parameters(SMALL_INTERNVL) | internvl3_vision_parameters(SMALL_INTERNVL)
    dtypes = json.loads((folder / FACTS_FILE).read_text())["dtypes"]
    real = sum(map(len, contents(folder).values()))
    assert real <= expected_bytes(parameters, dtypes) <= real + 40e6


def test_the_largest_model_needs_the_space_of_its_weights() -> None:
    ids = dict.fromkeys(("<|im_start|>", "<end_of_utterance>", "<|im_end|>", "<image>"), 0)
    parameters = idefics3_parameters(idefics3_config(SHAPES["smolvlm-2.2b"], ids))
    assert 8.9e9 < expected_bytes(parameters, ["fp32"]) < 9.5e9


def test_an_unknown_shape_is_refused_with_a_hint() -> None:
    with pytest.raises(RequestError, match="did you mean 'smolvlm-256m'"):
        find_shape("smolvlm-256")
    with pytest.raises(RequestError, match="known: smolvlm-256m"):
        find_shape("zzz")
