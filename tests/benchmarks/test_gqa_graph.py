"""The graph that ONNX Runtime runs fastest: it computes what the plain export of the same weights does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks.gqa_graph import PackedWeights, gqa_decoder
from edge_vl.made_models.configuration import idefics3_config
from edge_vl.made_models.idefics3_onnx import decoder
from edge_vl.made_models.parameters import idefics3_parameters
from edge_vl.made_models.smollm2_tokenizer import BOS, EOS, IMAGE, PAD
from edge_vl.made_models.weights import RandomWeights
from tests.made_models.small_shapes import SMALL_SMOLVLM

PREFIX = "model.text_model.layers.1.self_attn"


def config(*, is_tied: bool) -> dict[str, Any]:
    text = dataclasses.replace(SMALL_SMOLVLM.text, vocab_size=300, is_tied=is_tied)
    ids = dict.fromkeys((BOS, EOS, PAD, IMAGE), 0)
    return idefics3_config(dataclasses.replace(SMALL_SMOLVLM, text=text), ids)


def feeds(session: Any, num_rows: int, num_past: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    given = {
        "inputs_embeds": random.standard_normal((1, num_rows, 96), np.float32),
        "attention_mask": np.ones((1, num_past + num_rows), np.int64),
        "position_ids": np.arange(num_past, num_past + num_rows)[None],
        "num_logits_to_keep": np.array(0),
    }
    for number in range(4):
        kind = ("key", "value")[number % 2]
        given[f"past_key_values.{number // 2}.{kind}"] = random.standard_normal((1, 1, num_past, 32), np.float32)
    wanted = {entry.name for entry in session.get_inputs()}
    return {name: value for name, value in given.items() if name in wanted}


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize(("num_rows", "num_past"), [(5, 0), (1, 70), (3, 9)])
def test_it_computes_what_the_plain_export_computes(
    tmp_path: Path, is_tied: bool, num_rows: int, num_past: int
) -> None:
    contents = config(is_tied=is_tied)
    weights = RandomWeights(idefics3_parameters(contents))
    found = []
    for build in (decoder, gqa_decoder):
        path = tmp_path / f"{build.__name__}.onnx"
        build(weights, contents).save(path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = ["logits", "present.0.key", "present.1.value"]
        found.append(session.run(names, feeds(session, num_rows, num_past)))

    for plain, gqa in zip(*found, strict=True):
        assert plain.shape == gqa.shape
        assert np.abs(plain - gqa).max() < 1e-4


@pytest.mark.parametrize("max_inline_bytes", [1 << 30, 1000])
def test_both_forms_of_the_file_name_the_domain_of_its_operators(tmp_path: Path, max_inline_bytes: int) -> None:
    contents = config(is_tied=True)
    graph = gqa_decoder(RandomWeights(idefics3_parameters(contents)), contents)

    graph.save(tmp_path / "gqa.onnx", max_inline_bytes=max_inline_bytes)

    model = onnx.load(tmp_path / "gqa.onnx", load_external_data=False)
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 17, "com.microsoft": 1}
    assert [node.op_type for node in model.graph.node].count("GroupQueryAttention") == 2


def test_queries_keys_and_values_lie_below_each_other() -> None:
    weights = RandomWeights(idefics3_parameters(config(is_tied=True)))
    packed = PackedWeights(weights)

    found = packed.values(f"{PREFIX}.qkv_proj.weight")

    assert packed.shape(f"{PREFIX}.qkv_proj.weight") == found.shape == (96 + 2 * 32, 96)
    assert np.array_equal(found[96:128], weights.values(f"{PREFIX}.k_proj.weight"))
    assert np.array_equal(packed.values(f"{PREFIX}.o_proj.weight"), weights.values(f"{PREFIX}.o_proj.weight"))
    assert packed.names() == weights.names()
