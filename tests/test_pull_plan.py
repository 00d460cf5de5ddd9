"""What is chosen from what repositories hold: pure, so that real listings can be tried by their names alone."""

from __future__ import annotations

import pytest

from edge_vl.errors import ModelError, RequestError
from edge_vl.hub_repo import HubFile, HubRepo
from edge_vl.pull_plan import PullPlan, gguf_dtype, plan_files
from edge_vl.wanted_files import WantedFiles

SETTINGS = (
    "config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.json",
    "generation_config.json",
)
SUFFIXES = ("", "_bnb4", "_fp16", "_int8", "_q4", "_q4f16", "_quantized", "_uint8")
Q4 = ("vision_encoder_fp16", "embed_tokens_q4", "decoder_model_merged_q4")
STEMS = ("decoder_model_merged", "embed_tokens", "vision_encoder")

# As the Hub lists HuggingFaceTB/SmolVLM-256M-Instruct and the 2.2B, whose larger graphs have external data.
SMOLVLM = (
    *(".gitattributes", "README.md", "merges.txt", "vocab.json", "model.safetensors", *SETTINGS),
    *(f"onnx/{stem}{suffix}.onnx" for stem in STEMS for suffix in SUFFIXES),
)
SMOLVLM_LARGE = (*SMOLVLM, "onnx/decoder_model_merged.onnx_data", "onnx/decoder_model_merged_fp16.onnx_data")
SMOLVLM_GGUF = (
    *(".gitattributes", "README.md", "SmolVLM-256M-Instruct-Q8_0.gguf", "SmolVLM-256M-Instruct-f16.gguf"),
    *("mmproj-SmolVLM-256M-Instruct-Q8_0.gguf", "mmproj-SmolVLM-256M-Instruct-f16.gguf"),
)
# As the Hub lists openbmb/MiniCPM-V-2-gguf.
MINICPM_GGUF = (
    *("README.md", "ggml-model-Q2_K.gguf", "ggml-model-Q4_0.gguf", "ggml-model-Q4_K_M.gguf", "ggml-model-f16.gguf"),
    "mmproj-model-f16.gguf",
)


def repo(*paths: str, repo_id: str = "edge/model") -> HubRepo:
    files = tuple(HubFile(path, 1000 + index, "", "") for index, path in enumerate(paths))
    return HubRepo(repo_id, "main", "0" * 40, "apache-2.0", False, files)


def plan(*repos: HubRepo, form: str = "auto", vision: str = "auto", language: str = "auto") -> PullPlan:
    wanted = WantedFiles().of_form(form).with_dtypes(vision=vision, language=language)
    return plan_files("model", "Model", repos, wanted)


def weights(plan: PullPlan) -> list[str]:
    return [file.path for file in plan.files if file.role in {"vision", "language"}]


def test_by_default_a_graph_sees_and_gguf_speaks() -> None:
    chosen = plan(repo(*SMOLVLM), repo(*SMOLVLM_GGUF, repo_id="ggml/model"))
    assert weights(chosen) == ["onnx/vision_encoder.onnx", "gguf/SmolVLM-256M-Instruct-Q8_0.gguf"]
    assert [file.path for file in chosen.files if file.role == "settings"][:3] == [
        "config.json",
        "tokenizer.json",
        "preprocessor_config.json",
    ]
    assert {repo.repo_id for repo in chosen.repos} == {"edge/model", "ggml/model"}
    assert chosen.pairs == ()
    assert chosen.nbytes == sum(file.file.nbytes for file in chosen.files)


def test_where_there_are_no_graphs_gguf_does_both() -> None:
    chosen = plan(repo(*MINICPM_GGUF))
    assert weights(chosen) == ["gguf/mmproj-model-f16.gguf", "gguf/ggml-model-Q4_K_M.gguf"]
    [(text, projector)] = chosen.pairs
    assert (text.path, projector.path) == ("gguf/ggml-model-Q4_K_M.gguf", "gguf/mmproj-model-f16.gguf")


def test_where_there_is_no_gguf_graphs_do_both() -> None:
    assert weights(plan(repo(*SMOLVLM))) == [
        "onnx/vision_encoder.onnx",
        "onnx/embed_tokens.onnx",
        "onnx/decoder_model_merged.onnx",
    ]


def test_a_form_is_kept_to() -> None:
    both = (repo(*SMOLVLM), repo(*SMOLVLM_GGUF, repo_id="ggml/model"))
    assert all(path.startswith("onnx/") for path in weights(plan(*both, form="onnx")))
    assert weights(plan(*both, form="gguf")) == [
        "gguf/mmproj-SmolVLM-256M-Instruct-f16.gguf",
        "gguf/SmolVLM-256M-Instruct-Q8_0.gguf",
    ]
    with pytest.raises(ModelError, match="no language model of the wanted form"):
        plan(repo(*MINICPM_GGUF), form="onnx")


def test_a_graph_comes_with_its_external_data() -> None:
    large = repo(
        *SMOLVLM_LARGE,
        "onnx/vision_encoder.onnx_data",
        "onnx/vision_encoder.onnx_data_1",
        "onnx/vision_encoder.onnx.bak",
    )
    paths = weights(plan(large, form="onnx"))
    assert "onnx/decoder_model_merged.onnx_data" in paths
    assert "onnx/decoder_model_merged_fp16.onnx_data" not in paths
    assert paths[:3] == ["onnx/vision_encoder.onnx", "onnx/vision_encoder.onnx_data", "onnx/vision_encoder.onnx_data_1"]


@pytest.mark.parametrize(
    ("vision", "language", "expected"),
    [
        ("fp16", "q4", [f"onnx/{name}.onnx" for name in Q4]),
        ("f16", "f16", ["onnx/vision_encoder_fp16.onnx", "gguf/SmolVLM-256M-Instruct-f16.gguf"]),
        ("q8_0", "q8_0", ["gguf/mmproj-SmolVLM-256M-Instruct-Q8_0.gguf", "gguf/SmolVLM-256M-Instruct-Q8_0.gguf"]),
        ("INT8", "auto", ["onnx/vision_encoder_int8.onnx", "gguf/SmolVLM-256M-Instruct-Q8_0.gguf"]),
    ],
)  # fmt: skip
def test_a_precision_that_is_asked_for_is_taken(vision: str, language: str, expected: list[str]) -> None:
    both = (repo(*SMOLVLM), repo(*SMOLVLM_GGUF, repo_id="ggml/model"))
    assert weights(plan(*both, vision=vision, language=language)) == expected


def test_a_precision_that_is_not_there_is_refused_and_what_is_there_is_told() -> None:
    with pytest.raises(
        ModelError, match=r"no language model .* there are: GGUF f16, GGUF q2_k, GGUF q4_0, GGUF q4_k_m"
    ):
        plan(repo(*MINICPM_GGUF), language="q8_0")
    with pytest.raises(ModelError, match=r"no vision encoder .* there are: GGUF f16"):
        plan(repo(*MINICPM_GGUF), vision="q8_0")


def test_a_precision_or_a_form_that_nobody_knows_is_refused() -> None:
    with pytest.raises(RequestError, match="unknown precision 'q9'; ONNX: fp32"):
        WantedFiles().with_dtypes(vision="q9")
    with pytest.raises(RequestError, match="unknown form 'torch'; known: auto, onnx, gguf"):
        WantedFiles().of_form("torch")


def test_a_split_file_comes_whole_or_not_at_all() -> None:
    parts = [f"big/Model-Q8_0-0000{index}-of-00003.gguf" for index in (1, 2, 3)]
    chosen = plan(repo(*parts, "big/mmproj-Model-f16.gguf"))
    assert weights(chosen) == ["gguf/mmproj-Model-f16.gguf", *(path.replace("big/", "gguf/") for path in parts)]
    assert [text.path for text, _ in chosen.pairs] == ["gguf/Model-Q8_0-00001-of-00003.gguf"]
    with pytest.raises(ModelError, match="2 of the 3 parts"):
        plan(repo(*parts[:2]))


def test_a_text_model_alone_is_taken_with_a_note() -> None:
    chosen = plan(repo("SmolLM2-Q8_0.gguf", "imatrix.gguf", "mtp-SmolLM2-Q8_0.gguf"))
    assert weights(chosen) == ["gguf/SmolLM2-Q8_0.gguf"]
    assert "read text only" in chosen.notes[0]


def test_settings_of_which_one_is_missing_are_left_out_beside_gguf_and_missed_beside_graphs() -> None:
    chosen = plan(repo(*MINICPM_GGUF, "config.json", "chat_template.jinja"))
    assert [file.path for file in chosen.files if file.role == "settings"] == ["chat_template.jinja"]
    with pytest.raises(ModelError, match=r"not all of config.json, tokenizer.json, preprocessor_config.json"):
        plan(repo(*(path for path in SMOLVLM if path != "tokenizer.json")))


def test_licences_come_along_and_nothing_else() -> None:
    chosen = plan(repo(*MINICPM_GGUF, "LICENSE", "NOTICE.txt", "docs/LICENSE", "pytorch_model.bin"))
    assert [file.path for file in chosen.files if file.role == "paper"] == ["LICENSE", "NOTICE.txt"]
    assert len(chosen.files) == 4


def test_an_empty_repository_says_so() -> None:
    with pytest.raises(ModelError, match="neither ONNX nor GGUF files"):
        plan(repo("README.md", "model.safetensors"))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("SmolVLM-256M-Instruct-Q8_0.gguf", "q8_0"),
        ("ggml-model-Q4_K_M.gguf", "q4_k_m"),
        ("mmproj-model-f16.gguf", "f16"),
        ("Qwen3-VL-Reranker-2B.mmproj-fp16.gguf", "f16"),
        ("gemma-3-4b-it-BF16.gguf", "bf16"),
        ("Model-IQ4_XS.gguf", "iq4_xs"),
        ("Model-UD-Q4_K_XL.gguf", "q4_k_xl"),
        ("Model-Q8_0-00001-of-00002.gguf", "q8_0"),
        ("mmproj.gguf", ""),
        ("Qwen2.gguf", ""),
        ("F16.gguf", "f16"),
    ],
)
def test_a_gguf_files_precision_is_read_from_its_name(name: str, dtype: str) -> None:
    assert gguf_dtype(name) == dtype
