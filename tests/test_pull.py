"""Pulling models from a double of the Hub that holds the bundled model's real files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import gguf
import numpy as np
import pytest

from edge_vl import ModelError, Runtime
from edge_vl.catalog import CatalogEntry
from edge_vl.hub import Hub
from edge_vl.models import BUNDLED, find_model, model_names
from edge_vl.pull import default_hub, plan_pull, pull
from edge_vl.pulled_model import PulledModel, read_pulled_model
from edge_vl.wanted_files import WantedFiles
from tests.hub_double import TOKEN, Fault, HubDouble, RepoDouble

BUNDLED_FOLDER = find_model(BUNDLED).path
REPO, GGUF_REPO = "edge/tiny-VLM", "edge/tiny-VLM-GGUF"


@pytest.fixture
def double(hub_double: HubDouble, monkeypatch: pytest.MonkeyPatch) -> HubDouble:
    """Hold the bundled model as two repositories, as real models are, under the short name `tiny`."""
    files = RepoDouble.of_folder(BUNDLED_FOLDER).files
    hub_double.repos[REPO] = RepoDouble({path: data for path, data in files.items() if not path.startswith("gguf/")})
    hub_double.repos[GGUF_REPO] = RepoDouble.of_folder(BUNDLED_FOLDER, under="gguf", card={"license": "mit"})
    entry = CatalogEntry("tiny", "The bundled model, from afar", repo=REPO, gguf=GGUF_REPO)
    monkeypatch.setattr("edge_vl.pull.catalog", lambda: {"tiny": entry})
    return hub_double


def pull_all(model: str = "tiny", form: str = "auto") -> PulledModel:
    return pull(plan_pull(model, wanted=WantedFiles().of_form(form)))


def paths_of(model: PulledModel) -> set[str]:
    return {file.path for file in model.files}


def red_square() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    pixels = np.full((128, 128, 3), 235, np.uint8)
    pixels[14:50, 14:50] = (220, 20, 30)
    return pixels


def test_a_pulled_model_answers_when_the_hub_is_gone(double: HubDouble) -> None:
    pull_all(form="onnx")
    double.stop()
    with Runtime.open("tiny", vision_engine="onnxruntime", language_engine="onnxruntime") as runtime:
        answer = runtime.ask(red_square(), "What is at the top left?")
    assert (answer.text, answer.model) == ("a red square", "tiny")


def test_a_pulled_model_is_found_offline_and_without_the_hubs_library(double: HubDouble, tmp_path: Path) -> None:
    pull_all()
    double.stop()
    script = (
        "import sys; sys.modules['huggingface_hub'] = None\n"
        "from edge_vl.models import find_model, model_names\n"
        f"print(model_names(), find_model('tiny').family, find_model('{REPO}').name)\n"
    )
    variables = {"EDGE_VL_MODELS_DIR": str(tmp_path / "models"), "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("('bundled', 'tiny') idefics3 tiny\n", "")


def test_the_default_takes_graphs_to_see_and_gguf_to_speak(double: HubDouble) -> None:
    paths = paths_of(pull_all())
    assert {path for path in paths if "/" in path} == {
        "onnx/vision_encoder.onnx",
        "gguf/edge-vl-bundled-text-f16.gguf",
    }
    assert {"config.json", "tokenizer.json", "preprocessor_config.json", "chat_template.jinja"} <= paths
    assert "README.md" not in paths


def test_one_form_alone_takes_all_of_that_form(double: HubDouble) -> None:
    assert {path for path in paths_of(pull_all(form="onnx")) if "/" in path} == {
        "onnx/vision_encoder.onnx",
        "onnx/embed_tokens.onnx",
        "onnx/decoder_model_merged.onnx",
    }
    pulled = pull_all(GGUF_REPO, form="gguf")
    assert paths_of(pulled) == {"gguf/edge-vl-bundled-text-f16.gguf", "gguf/mmproj-edge-vl-bundled-f16.gguf"}
    assert find_model(GGUF_REPO).has_vision


def test_pulling_another_form_adds_it_and_another_commit_replaces_it(double: HubDouble) -> None:
    first = paths_of(pull_all(form="onnx"))
    both = pull_all(form="gguf")
    assert first < paths_of(both)
    assert {source.repo for source in both.sources} == {REPO, GGUF_REPO}
    both.check()
    double.repos[REPO].files["generation_config.json"] = b"{}"
    newer = pull_all(form="gguf")
    assert not {path for path in paths_of(newer) if path.startswith("onnx/")}
    assert (newer.folder / "generation_config.json").read_bytes() == b"{}"


def test_the_manifest_says_where_all_came_from(double: HubDouble) -> None:
    pulled = pull_all()
    manifest = json.loads((pulled.folder / "edge_vl_model.json").read_text())
    assert [(source["repo"], source["commit"], source["licence"]) for source in manifest["sources"]] == [
        (REPO, double.repos[REPO].commit, "apache-2.0"),
        (GGUF_REPO, double.repos[GGUF_REPO].commit, "mit"),
    ]
    by_path = {file["path"]: file for file in manifest["files"]}
    graph = by_path["onnx/vision_encoder.onnx"]
    assert graph["nbytes"] == (BUNDLED_FOLDER / "onnx/vision_encoder.onnx").stat().st_size
    assert len(graph["sha256"]) == 64
    assert manifest["pulled_at"].endswith("+00:00")
    assert read_pulled_model(pulled.folder) == pulled


def test_weights_are_shared_with_the_hubs_cache_and_settings_are_not(double: HubDouble, tmp_path: Path) -> None:
    pulled = pull_all(form="onnx")
    blobs = tmp_path / "cache/models--edge--tiny-VLM/blobs"
    sha256 = next(file.sha256 for file in pulled.files if file.path == "onnx/vision_encoder.onnx")
    assert (pulled.folder / "onnx/vision_encoder.onnx").samefile(blobs / sha256)
    assert (pulled.folder / "config.json").stat().st_nlink == 1


@pytest.mark.parametrize("ways", [("hardlink_to",), ("hardlink_to", "symlink_to")])
def test_where_links_are_impossible_weights_are_had_otherwise(
    double: HubDouble, monkeypatch: pytest.MonkeyPatch, ways: tuple[str, ...]
) -> None:
    def refuse(link: Path, target: Path, target_is_directory: bool = False) -> None:
        raise OSError("a privilege is not held")

    for way in ways:
        monkeypatch.setattr(Path, way, refuse)
    pulled = pull_all(form="onnx")
    graph = pulled.folder / "onnx/vision_encoder.onnx"
    assert graph.is_symlink() == (len(ways) == 1)
    assert graph.read_bytes() == (BUNDLED_FOLDER / "onnx/vision_encoder.onnx").read_bytes()
    assert find_model("tiny").family == "idefics3"


def test_a_second_pull_downloads_nothing(double: HubDouble) -> None:
    pull_all()
    double.requests.clear()
    pull_all()
    assert [request for request in double.requests if "/cdn/" in request.path] == []


def test_a_pulled_model_outlives_the_hubs_cache(double: HubDouble, tmp_path: Path) -> None:
    pull_all()
    shutil.rmtree(tmp_path / "cache")
    assert find_model("tiny").name == "tiny"


def test_a_file_that_is_gone_is_noticed_and_pulled_again(double: HubDouble) -> None:
    pulled = pull_all()
    (pulled.folder / "onnx/vision_encoder.onnx").unlink()
    with pytest.raises(ModelError, match=r"vision_encoder.onnx is gone.*edge-vl models pull tiny"):
        find_model("tiny")
    assert "tiny" in model_names()
    pull_all()
    assert find_model("tiny").name == "tiny"


def test_too_little_room_is_told_before_the_first_byte(double: HubDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("edge_vl.pull.shutil.disk_usage", lambda place: usage(1 << 30, 1 << 30, 5 << 20))
    plan = plan_pull("tiny")
    with pytest.raises(ModelError, match=r"needs \d+ MiB more, and 5 MiB are free .*HF_HUB_CACHE"):
        pull(plan)
    assert double.bodies_of(".onnx") == []


def test_a_vision_encoder_of_another_width_is_refused(double: HubDouble, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("clip.projector_type", "idefics3")
    writer.add_uint32("clip.vision.projection_dim", 576)
    writer.add_tensor("mm.model.fc.weight", np.zeros((576, 8), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    double.repos[GGUF_REPO].files["mmproj-edge-vl-bundled-f16.gguf"] = path.read_bytes()
    with pytest.raises(ModelError, match=r"not of one model.*256 wide.*576 wide"):
        pull_all(form="gguf")
    assert "tiny" not in model_names()


def test_a_gated_model_says_how_to_get_it_and_a_token_opens_it(
    double: HubDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    double.repos[REPO].gated = "manual"
    plan = plan_pull("tiny")
    assert plan.repos[0].is_gated
    with pytest.raises(ModelError, match=rf"gated: accept its licence at https://huggingface.co/{REPO}.*HF_TOKEN"):
        pull(plan)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    pull(plan)
    assert find_model("tiny").name == "tiny"
    elsewhere = [request for request in double.requests if request.host == "localhost"]
    assert elsewhere
    assert {request.token for request in elsewhere} == {""}


def test_a_folder_of_the_users_own_is_not_overwritten(double: HubDouble, tmp_path: Path) -> None:
    (tmp_path / "models/tiny").mkdir(parents=True)
    (tmp_path / "models/tiny/notes.txt").write_text("mine")
    with pytest.raises(ModelError, match="was not made by `models pull`"):
        pull_all()
    assert (tmp_path / "models/tiny/notes.txt").read_text() == "mine"


def test_what_arrived_before_an_error_is_not_downloaded_again(double: HubDouble) -> None:
    double.faults["decoder_model_merged.onnx"] = [Fault(is_wrong=True)]
    with pytest.raises(ModelError, match="arrived damaged"):
        pull_all(form="onnx")
    assert "tiny" not in model_names()
    double.requests.clear()
    pull_all(form="onnx")
    assert [request.path.rpartition("|")[2] for request in double.bodies_of(".onnx") if "/cdn/" in request.path] == [
        "onnx/decoder_model_merged.onnx"
    ]


def test_progress_is_told_up_to_the_last_byte(double: HubDouble) -> None:
    plan = plan_pull("tiny", wanted=WantedFiles().of_form("onnx"))
    told: dict[str, list[int]] = {}
    pull(plan, on_progress=lambda file, num_bytes: told.setdefault(file.path, []).append(num_bytes))
    assert {path: steps[-1] for path, steps in told.items()} == {file.path: file.file.nbytes for file in plan.files}
    assert all(steps == sorted(steps) for steps in told.values())


def test_the_hub_is_the_one_that_the_environment_names(double: HubDouble) -> None:
    hub = default_hub()
    assert isinstance(hub, Hub)
    assert hub.repo(REPO).commit == double.repos[REPO].commit


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tinny", "did you mean 'tiny'"),
        ("nothing-like-it", "known: tiny .*owner/name"),
        ("a/b/c", "no model is known as"),
        ("edge/missing", "does not exist, or may not be read"),
    ],
)
def test_an_unknown_model_is_told_with_a_hint(double: HubDouble, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        plan_pull(name)


@pytest.mark.parametrize(
    ("form", "vision_engine"), [("auto", "onnxruntime"), ("gguf", "llama_cpp")], ids=["graphs-see", "gguf-sees"]
)
def test_a_pulled_gguf_model_answers_when_the_hub_is_gone(double: HubDouble, form: str, vision_engine: str) -> None:
    pull_all(form=form)
    double.stop()
    with Runtime.open("tiny", vision_engine=vision_engine, language_engine="llama_cpp") as runtime:
        answer = runtime.ask(red_square(), "What is at the top left?")
    assert (answer.text, answer.language_engine) == ("a red square", "llama_cpp")
