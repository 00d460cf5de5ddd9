"""A decoder in pieces against the same one whole: random plans, batches, faults and compressed caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edge_vl.engine import Engine, ImageEmbeds, KVCache, LaneOptions, LanguageModel, Prefillable
from edge_vl.errors import EngineFault
from edge_vl.kv_policy import KVPolicy, parse_kv_policy
from edge_vl.model_spec import ModelSpec
from edge_vl.models import find_model
from edge_vl.plan import TextChunk
from edge_vl.testing import EngineContract
from edge_vl_kernels import KVGeometry, KVKernels, Rope
from edge_vl_onnxruntime import OnnxRuntimeEngine
from edge_vl_onnxruntime.cache_formats import cache_format
from edge_vl_onnxruntime.cut_language import CutLanguageModel, SequenceRun
from edge_vl_onnxruntime.cut_pass import BufferPlan, Buffers, CutPass, HeadPass
from edge_vl_onnxruntime.cut_sessions import open_sessions
from edge_vl_onnxruntime.decoder_graph import Input, read_decoder_graph
from edge_vl_onnxruntime.graph_cut import Piece, cut_graph
from edge_vl_onnxruntime.page_pool import PagePool
from edge_vl_onnxruntime.paged_cache import PagedKVCache
from edge_vl_onnxruntime.session import open_session
from tests.decoder_graphs import HIDDEN
from tests.engines.cut_models import CONTEXT, load, load_in_pieces, noise, write_cut_model

CUT = LaneOptions(threads=1, attention="cut")
WHOLE = LaneOptions(threads=1, attention="whole")
NUM_PLANS = 250
MAX_ENTRIES = 320

Logits = NDArray[np.float32]


@dataclass
class Pair:
    """A model in pieces, and whole."""

    cut: CutLanguageModel
    whole: LanguageModel


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    """A decoder of GroupQueryAttention operators that turn queries and keys themselves."""
    return write_cut_model(tmp_path_factory.mktemp("grouped") / "model")


def model_named(name: str, grouped: ModelSpec) -> ModelSpec:
    return find_model("bundled") if name == "bundled" else grouped


@pytest.fixture(scope="module", params=["bundled", "grouped"])
def pair(request: pytest.FixtureRequest, grouped: ModelSpec, cache_dir: Path) -> Iterator[Pair]:
    model = model_named(request.param, grouped)
    pair = Pair(load_in_pieces(model, CUT, cache_dir), load(model, WHOLE, cache_dir))
    yield pair
    pair.cut.close()
    pair.whole.close()


@pytest.fixture(scope="module")
def small(grouped: ModelSpec, cache_dir: Path) -> Iterator[CutLanguageModel]:
    language = load_in_pieces(grouped, CUT, cache_dir)
    yield language
    language.close()


def compressed(grouped: ModelSpec, cache_dir: Path, kv: str) -> CutLanguageModel:
    return load_in_pieces(grouped, replace(CUT, kv=parse_kv_policy(kv)), cache_dir)


def append(language: LanguageModel, cache: KVCache, run: list[Prefillable]) -> Logits:
    logits = language.prefill(cache, run)
    assert logits is not None
    return logits


def same(found: Logits, expected: Logits) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def relative(found: Logits, expected: Logits) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def content(language: CutLanguageModel, cache: PagedKVCache) -> list[NDArray[Any]]:
    """Return everything that a cache holds."""
    return [rows for layer in range(language.spec.num_layers) for rows in cache.read(layer)]


class _Plan:
    """The same random calls on both: caches in step, and logits compared after each call that gives some."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair, self.random = pair, np.random.default_rng(seed)
        self.caches: list[tuple[KVCache, KVCache]] = [(pair.cut.new_cache(), pair.whole.new_cache())]

    def run(self) -> None:
        for _ in range(int(self.random.integers(3, 9))):
            place = int(self.random.integers(len(self.caches)))
            getattr(self, str(self.random.choice(["prefill", "decode", "fork", "trim"], p=[0.45, 0.25, 0.15, 0.15])))(
                *self.caches[place]
            )
        self.prefill(*self.caches[0])
        for pair in self.caches:
            for cache in pair:
                cache.close()

    def prefill(self, one: KVCache, other: KVCache) -> None:
        count = min(int(self.random.choice([1, 3, 20, 70, 150])), MAX_ENTRIES - one.num_tokens)
        if count > 0:
            run = noise(self.random, count, self.pair.cut.spec.hidden_size, one.num_tokens)
            same(append(self.pair.cut, one, run), append(self.pair.whole, other, run))
            assert one.num_tokens == other.num_tokens

    def decode(self, one: KVCache, other: KVCache) -> None:
        for token_id in self.random.integers(0, 90, int(self.random.integers(1, 5))):
            same(self.pair.cut.decode(one, int(token_id)), self.pair.whole.decode(other, int(token_id)))

    def fork(self, one: KVCache, other: KVCache) -> None:
        self.caches.append((one.fork(), other.fork()))

    def trim(self, one: KVCache, other: KVCache) -> None:
        kept = int(self.random.integers(one.num_tokens + 1))
        one.trim(kept)
        other.trim(kept)
        assert one.num_tokens == kept


def test_random_plans_give_the_logits_of_the_whole_graph(pair: Pair) -> None:
    for seed in range(NUM_PLANS):
        _Plan(pair, seed).run()
    assert pair.cut.pool.num_pages_in_use == 0


def test_sequences_of_a_batch_give_what_each_gives_alone(pair: Pair) -> None:
    language, random = pair.cut, np.random.default_rng(7)
    hidden = language.spec.hidden_size
    for sizes in ([1, 1], [1, 70, 3], [200, 1, 130, 64]):
        starts = [noise(random, int(random.integers(1, 140)), hidden) for _ in sizes]
        runs = [noise(random, size, hidden) for size in sizes]
        together, alone = [language.new_cache() for _ in sizes], [language.new_cache() for _ in sizes]
        expected = []
        for start, run, one, other in zip(starts, runs, together, alone, strict=True):
            language.prefill(one, start, want_logits=False)
            language.prefill(other, start, want_logits=False)
            expected.append(append(language, other, run))
        wants = [place % 2 == 0 for place in range(len(sizes))]
        found = language.forward(list(map(SequenceRun, together, runs, wants)))
        assert [logits is not None for logits in found] == wants
        for logits, wanted in zip(found, expected, strict=True):
            if logits is not None:
                same(logits, wanted)
        for one, other in zip(together, alone, strict=True):
            same(language.decode(one, 5), language.decode(other, 5))
            one.close()
            other.close()


def test_forks_go_their_own_ways_in_one_batch(small: CutLanguageModel) -> None:
    trunk = small.new_cache()
    small.prefill(trunk, noise(np.random.default_rng(2), 90, small.spec.hidden_size), want_logits=False)
    forks, twins = [trunk.fork(), trunk.fork()], [trunk.fork(), trunk.fork()]
    runs: list[list[Prefillable]] = [[TextChunk((token_id,) * 50, 90)] for token_id in (3, 4)]
    found = small.forward([(fork, run, True) for fork, run in zip(forks, runs, strict=True)])
    for logits, twin, run in zip(found, twins, runs, strict=True):
        assert logits is not None
        same(logits, append(small, twin, run))
    for cache in (trunk, *forks, *twins):
        cache.close()


def test_a_long_run_goes_in_by_several_passes_and_gives_the_same(small: CutLanguageModel) -> None:
    runs = [noise(np.random.default_rng(seed), 150, small.spec.hidden_size) for seed in range(2)]
    whole = [append(small, small.new_cache(), run) for run in runs]
    small.max_rows = 37
    try:
        caches = [small.new_cache(), small.new_cache()]
        found = small.forward([(cache, run, True) for cache, run in zip(caches, runs, strict=True)])
    finally:
        small.max_rows = 512
    for logits, expected in zip(found, whole, strict=True):
        assert logits is not None
        same(logits, expected)


def test_a_whole_context_fits_and_not_one_entry_more(small: CutLanguageModel) -> None:
    cache = small.new_cache()
    run = noise(np.random.default_rng(0), CONTEXT - 1, small.spec.hidden_size)
    small.prefill(cache, run, want_logits=False)
    assert np.isfinite(small.decode(cache, 1)).all()
    with pytest.raises(EngineFault, match="room for 0"):
        small.decode(cache, 1)
    cache.close()


def test_a_batch_that_makes_no_sense_is_refused(small: CutLanguageModel, pair: Pair) -> None:
    cache, run = small.new_cache(), [TextChunk((1,), 0)]
    stranger = pair.whole.new_cache()
    for batch in ([], [(cache, run, True), (cache, run, True)], [(cache, run, True), (stranger, run, True)]):
        with pytest.raises(EngineFault):
            small.forward(batch)
    assert cache.num_tokens == 0
    assert cache.nbytes == 0


@pytest.mark.parametrize("kv", ["f32", "int8", "text=f16,image=int4"])
@pytest.mark.parametrize("where", ["layer", "head", "kernel"])
def test_a_pass_that_fails_leaves_every_cache_of_the_batch_as_it_was(
    grouped: ModelSpec, cache_dir: Path, kv: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    language = compressed(grouped, cache_dir, kv)
    random, hidden = np.random.default_rng(3), language.spec.hidden_size
    caches = [language.new_cache() for _ in range(3)]
    for cache, size in zip(caches, (0, 100, 69), strict=True):
        if size:
            language.prefill(cache, noise(random, size, hidden), want_logits=False)
    fork = caches[1].fork()
    before = [content(language, cache) for cache in (*caches[1:], fork)]
    runs = [noise(random, 60, hidden) for _ in caches]
    calls = 0

    def fail_late(layer: int, *_rows: NDArray[np.float32]) -> None:
        nonlocal calls
        calls += 1
        if calls == 8:  # the second layer of the third pass
            raise RuntimeError("the lights went out")

    language.max_rows = 50
    if where == "layer":
        language.observer = fail_late
    elif where == "head":
        monkeypatch.setattr(HeadPass, "run", lambda *_: (_ for _ in ()).throw(RuntimeError("the lights went out")))
    else:
        bad = np.zeros((4, hidden), np.float32)
        bad[2] = np.nan
        runs[2].append(ImageEmbeds(bad, ""))
    with pytest.raises(EngineFault, match=r"the lights went out|NaN or infinite") as caught:
        language.forward([(cache, run, True) for cache, run in zip(caches, runs, strict=True)])
    assert caught.value.stage == "prefill"
    assert [cache.num_tokens for cache in caches] == [0, 100, 69]
    for cache, rows in zip((*caches[1:], fork), before, strict=True):
        for found, expected in zip(content(language, cache), rows, strict=True):
            np.testing.assert_array_equal(found, expected)
    language.observer = None
    monkeypatch.undo()
    same(language.decode(caches[1], 3), language.decode(fork, 3))
    for cache in (*caches, fork):
        cache.close()
    assert language.pool.num_pages_in_use == 0
    language.close()


def test_a_failed_decode_leaves_the_cache(small: CutLanguageModel) -> None:
    cache = small.new_cache()
    small.prefill(cache, [TextChunk((1, 2, 3), 0)], want_logits=False)

    def fail(layer: int, *_rows: NDArray[np.float32]) -> None:
        raise RuntimeError("the lights went out")

    twin = cache.fork()
    small.observer = fail
    with pytest.raises(EngineFault, match="the lights went out") as caught:
        small.decode(cache, 4)
    small.observer = None
    assert (caught.value.stage, cache.num_tokens) == ("decode", 3)
    np.testing.assert_array_equal(small.decode(cache, 4), small.decode(twin, 4))


def test_a_graph_that_asks_for_the_number_of_logits_is_told(grouped: ModelSpec) -> None:
    path = grouped.path / "onnx" / "decoder_model_merged.onnx"
    cut = cut_graph(path, grouped.config["text_config"])
    graph = read_decoder_graph(open_session(path, CUT), grouped.config["text_config"])
    counting = replace(graph, others=(*graph.others, Input("num_logits_to_keep", "count", np.int64, 0)))
    last = onnx.load_from_string(cut.pieces[-1].graph)
    head = next(node for node in last.graph.node if "logits" in node.output)
    head.output[0] = "all_logits"
    last.graph.input.append(helper.make_tensor_value_info("num_logits_to_keep", TensorProto.INT64, []))
    constants = {"one_axis": [1], "end": [2**31]}
    last.graph.initializer.extend(numpy_helper.from_array(np.array(v), name) for name, v in constants.items())
    last.graph.node.extend(
        [
            helper.make_node("Neg", ["num_logits_to_keep"], ["minus"]),
            helper.make_node("Reshape", ["minus", "one_axis"], ["start"]),
            helper.make_node("Slice", ["all_logits", "start", "end", "one_axis"], ["logits"]),
        ]
    )
    piece = Piece(last.SerializeToString(), (*cut.pieces[-1].inputs, "num_logits_to_keep"), ("logits",))
    sessions = open_sessions(replace(cut, pieces=(*cut.pieces[:-1], piece)), counting, num_threads=1)
    plain = open_sessions(cut, graph, num_threads=1)
    random = np.random.default_rng(0)
    embeds = random.standard_normal((1, 9, HIDDEN)).astype(np.float32)
    attention = cut.attentions[0]
    assert attention.rope is not None
    kernels = KVKernels(
        cache_format(KVPolicy(), KVGeometry(3, 4, 2, 32)),
        scale=attention.scale,
        rope=Rope(attention.rope.cosines, attention.rope.sines),
    )
    found = []
    for loaded in (sessions, plain):
        rows = CutPass(loaded, Buffers(BufferPlan(loaded), 9), kernels, 9)
        rows.embeds[:] = embeds
        cache = PagedKVCache(PagePool(), kernels, kernels.cache_format, loaded, 100)
        rows.run(kernels.step([cache.begin(9)]), 3, None)
        found.append(HeadPass(loaded, 3).run(rows, [2, 5, 8]).copy())
    np.testing.assert_array_equal(found[0], found[1])
    assert len(np.unique(found[0], axis=0)) == 3


def test_an_observer_sees_what_the_caches_keep(pair: Pair) -> None:
    language = pair.cut
    seen: dict[int, list[NDArray[np.float32]]] = {}
    language.observer = lambda layer, *rows: seen.update({layer: [part.copy() for part in rows]})
    cache = language.new_cache()
    language.prefill(cache, noise(np.random.default_rng(1), 20, language.spec.hidden_size))
    language.observer = None
    assert list(seen) == list(range(language.spec.num_layers))
    for layer, (queries, keys, values) in seen.items():
        kept_keys, kept_values = cache.read(layer)
        np.testing.assert_array_equal(kept_values, values)
        if language.kernels.rope is None:
            np.testing.assert_array_equal(kept_keys, keys)
        assert queries.shape == (20, language.kernels.cache_format.geometry.num_query_heads, language.spec.head_dim)
    cache.close()


@pytest.mark.parametrize(("kv", "tolerance", "share"), [("f16", 2e-3, 0.55), ("int8", 0.05, 0.4), ("int4", 0.5, 0.3)])
def test_compressed_caches_take_less_and_say_nearly_the_same(
    pair: Pair, grouped: ModelSpec, cache_dir: Path, kv: str, tolerance: float, share: float
) -> None:
    exact = pair.cut
    model = model_named("bundled" if exact.spec.num_layers == 4 else "grouped", grouped)
    language = load_in_pieces(model, replace(CUT, kv=parse_kv_policy(kv)), cache_dir)
    assert language.spec.kv == kv
    run = noise(np.random.default_rng(5), 450, exact.spec.hidden_size)
    one, other = exact.new_cache(), language.new_cache()
    append(exact, one, run)
    append(language, other, run)
    difference = relative(language.decode(other, 7), exact.decode(one, 7))
    assert 0 < difference < tolerance
    assert other.nbytes < share * one.nbytes
    one.close()
    language.close()


def test_models_over_the_same_pieces_keep_caches_of_their_own(small: CutLanguageModel) -> None:
    stored = cache_format(parse_kv_policy("int8"), small.kernels.cache_format.geometry)
    other = small.with_format(stored, "int8")
    run = [TextChunk(tuple(token_id % 90 for token_id in range(100)), 0)]
    mine, its = small.new_cache(), other.new_cache()
    expected, found = small.prefill(mine, run), other.prefill(its, run)
    assert expected is not None
    assert found is not None
    assert relative(found, expected) < 0.05
    assert other.spec.kv == "int8"
    for language, foreign in ((small, its), (other, mine)):
        with pytest.raises(EngineFault, match="another language model"):
            language.decode(foreign, 7)
    other.detach()
    with pytest.raises(EngineFault, match="closed"):
        other.decode(its, 7)
    assert np.isfinite(small.decode(mine, 7)).all()  # the pieces are still there
    its.close()
    mine.close()


@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_a_compressed_cache_does_not_depend_on_how_rows_came_in(grouped: ModelSpec, cache_dir: Path, kv: str) -> None:
    language = compressed(grouped, cache_dir, kv)
    run = noise(np.random.default_rng(5), 210, language.spec.hidden_size)
    whole, pieces = language.new_cache(), language.new_cache()
    append(language, whole, run)
    for part in run:
        append(language, pieces, [part])
    for one, other in zip(content(language, whole), content(language, pieces), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-2)  # a code may fall to the other side
    assert relative(language.decode(pieces, 3), language.decode(whole, 3)) < 1e-3
    language.close()


def test_a_trim_into_a_compressed_block_forgets_it_whole_and_it_is_computed_again(
    grouped: ModelSpec, cache_dir: Path
) -> None:
    language = compressed(grouped, cache_dir, "int8")
    tokens = tuple(int(token) for token in np.random.default_rng(5).integers(0, 90, 200))
    cache = language.new_cache()
    append(language, cache, [TextChunk(tokens, 0)])
    assert cache.num_tokens == 200
    cache.trim(150)  # 4 sinks, two blocks of 64 up to 132, and 18 entries of a compressed one
    assert cache.num_tokens == 132
    again = append(language, cache, [TextChunk((*tokens[132:150], 9), 132)])
    fresh = append(language, language.new_cache(), [TextChunk((*tokens[:150], 9), 0)])
    same(again, fresh)
    language.close()


class CutContract(EngineContract):
    """The contract, over a cut decoder."""

    name = "grouped"
    kv = "auto"
    has_vision = False

    @pytest.fixture(autouse=True)
    def _parts(self, grouped: ModelSpec, cache_dir: Path) -> None:
        self._model, self._engine = model_named(self.name, grouped), OnnxRuntimeEngine(cache_dir)

    def engine(self) -> Engine:
        return self._engine

    def model(self) -> ModelSpec:
        return self._model

    def options(self) -> LaneOptions:
        return replace(CUT, kv=parse_kv_policy(self.kv))


class TestGrouped(CutContract):
    pass


class TestGroupedInt8(CutContract):
    kv = "int8"


class TestGroupedByKind(CutContract):
    kv = "text=f16,image=int4"
    tolerance = 2e-3  # float16 rounds rows that come in differently to either side


class TestBundledInt4(CutContract):
    name = "bundled"
    kv = "int4"
    tolerance = 2e-3
