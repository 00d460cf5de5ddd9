"""Models that llama.cpp itself cuts pictures for, held against llama.cpp's own helper, which encodes and decodes."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama
import llama_cpp.mtmd_cpp as mtmd
import numpy as np
import pytest
from numpy.typing import NDArray

from edge_vl.engine import ImageEmbeds, LaneOptions, PictureCutter, Prefillable, VisionEncoder
from edge_vl.errors import EngineFault, ImageError, ModelError
from edge_vl.families.idefics3 import Idefics3
from edge_vl.frame import Frame
from edge_vl.message import Message
from edge_vl.model_spec import ModelSpec
from edge_vl.models import find_model
from edge_vl.plan import ImageGrid, ImageUnit, TextChunk
from edge_vl.tokenizer import HFTokenizer
from edge_vl_llama_cpp import engine as llama_engine
from edge_vl_llama_cpp.library import open_library
from tests.engines.tiny_gguf import HIDDEN, PAIRS, write_pair, write_text, write_vision

ONE_THREAD = LaneOptions(threads=1)
BEFORE, BEHIND = (20, 30, 40, 50), (60, 70)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModelSpec]:
    """Return tiny models by family, written once; `bundled` is the bundled pair without its configuration."""
    root = tmp_path_factory.mktemp("pairs")
    found: dict[str, ModelSpec] = {}

    def get(family: str) -> ModelSpec:
        if family not in found:
            found[family] = bare_bundled(root) if family == "bundled" else write_pair(root / family, family)
        return found[family]

    return get


def bare_bundled(root: Path) -> ModelSpec:
    folder = root / "bundled"
    folder.mkdir()
    for file in (find_model("bundled").path / "gguf").glob("*.gguf"):
        (folder / file.name).symlink_to(file)
    return find_model(folder)


def frame(height: int, width: int, seed: int = 0) -> Frame:
    return Frame(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8), 0.0, 0.0)


def load_cutter(spec: ModelSpec) -> Any:
    vision = llama_engine.load_vision(spec, ONE_THREAD)
    assert isinstance(vision, PictureCutter)
    return vision


def spelled_out(vision: VisionEncoder, grid: ImageGrid) -> list[Prefillable]:
    """Return the run of a picture between two texts."""
    parts: list[Prefillable] = [TextChunk(BEFORE, 0)]
    for unit, markers in zip(grid.units, grid.markers[:-1], strict=True):
        parts += [TextChunk(markers, 0)] if markers else []
        parts.append(vision.encode(unit))
    return [*parts, TextChunk((*grid.markers[-1], *BEHIND), 0)]


def helper_logits(spec: ModelSpec, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Let llama.cpp's helper run the same prompt in one go."""
    open_library()
    text_file = next(file for file in spec.path.glob("*.gguf") if not file.name.startswith("mmproj"))
    model = llama.llama_model_load_from_file(str(text_file).encode(), llama.llama_model_default_params())
    settings = llama.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_threads = 2048, 2048, 2048, 1
    context = llama.llama_init_from_model(model, settings)
    options = mtmd.mtmd_context_params_default()
    options.n_threads, options.use_gpu, options.print_timings = 1, False, False
    vision = mtmd.mtmd_init_from_file(str(next(spec.path.glob("mmproj*"))).encode(), model, options)
    vocabulary = llama.llama_model_get_vocab(model)
    marker = mtmd.mtmd_get_marker(vision)
    bitmap = mtmd.mtmd_bitmap_init(
        pixels.shape[1], pixels.shape[0], pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    )
    chunks = mtmd.mtmd_input_chunks_init()
    text = mtmd.mtmd_input_text(marker, len(marker), False, True)
    assert not mtmd.mtmd_tokenize(vision, chunks, ctypes.byref(text), (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap), 1)
    past = llama.llama_pos(0)

    def decode(token_ids: tuple[int, ...]) -> None:
        for token_id in token_ids:
            batch = llama.llama_batch_init(1, 0, 1)
            batch.n_tokens, batch.token[0], batch.pos[0], batch.n_seq_id[0] = 1, token_id, past.value, 1
            batch.seq_id[0][0], batch.logits[0] = 0, 1
            assert not llama.llama_decode(context, batch)
            llama.llama_batch_free(batch)
            past.value += 1

    decode(BEFORE)
    assert not mtmd.mtmd_helper_eval_chunks(vision, context, chunks, past.value, 0, 2048, True, ctypes.byref(past))
    decode(BEHIND)
    size = llama.llama_vocab_n_tokens(vocabulary)
    logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, -1), (size,)).copy()
    mtmd.mtmd_input_chunks_free(chunks)
    mtmd.mtmd_bitmap_free(bitmap)
    mtmd.mtmd_free(vision)
    llama.llama_free(context)
    llama.llama_model_free(model)
    return logits


@pytest.mark.parametrize("family", [*PAIRS, "bundled"])
@pytest.mark.parametrize("size", [(60, 100), (130, 40)])
def test_a_picture_between_two_texts_gives_the_logits_of_llama_cpps_own_helper(
    pairs: Callable[[str], ModelSpec], family: str, size: tuple[int, int]
) -> None:
    spec, picture = pairs(family), frame(*size)
    vision, language = load_cutter(spec), llama_engine.load_language(spec, ONE_THREAD)
    run = spelled_out(vision, vision.cut(picture))
    expected = helper_logits(spec, picture.pixels)
    whole, rows = language.new_cache(), language.new_cache()
    found = language.prefill(whole, run)
    assert found is not None
    assert np.linalg.norm(found - expected) < 3e-3 * np.linalg.norm(expected)
    for part in run[:-1]:
        language.prefill(rows, [part], want_logits=False)
    again = language.prefill(rows, run[-1:])
    assert again is not None
    assert np.linalg.norm(again - expected) < 3e-3 * np.linalg.norm(expected)
    assert (whole.num_tokens, whole.next_position) == (rows.num_tokens, rows.next_position)
    vision.close()
    language.close()


def test_pictures_of_qwen_share_positions_and_are_forgotten_whole(pairs: Callable[[str], ModelSpec]) -> None:
    spec = pairs("qwen2vl")
    vision, language = load_cutter(spec), llama_engine.load_language(spec, ONE_THREAD)
    grid = vision.cut(frame(64, 96))
    (unit,) = grid.units
    assert (unit.num_tokens, unit.num_positions) == (96, 12)
    embeds = vision.encode(unit)
    assert embeds.positions is not None
    np.testing.assert_array_equal(embeds.positions[[0, 11, 12, 95]], [[0, 0, 0], [0, 0, 11], [0, 1, 0], [0, 7, 11]])
    cache = language.new_cache()
    language.prefill(cache, [TextChunk(BEFORE, 0), embeds, TextChunk(BEHIND, 16)])
    assert (cache.num_tokens, cache.next_position) == (102, 18)
    with pytest.raises(ValueError, match="tear"):
        cache.trim(50)
    cache.trim(100)
    assert cache.next_position == 16
    found = language.prefill(cache, [TextChunk(BEHIND, 16)])
    cache.trim(4)
    assert (cache.num_tokens, cache.next_position) == (4, 4)
    expected = language.prefill(cache, [embeds, TextChunk(BEHIND, 16)])
    assert found is not None
    assert expected is not None
    assert np.linalg.norm(found - expected) < 3e-3 * np.linalg.norm(expected)
    vision.close()
    language.close()


def test_a_picture_of_qwen_may_be_longer_than_a_pass(pairs: Callable[[str], ModelSpec]) -> None:
    language = llama_engine.load_language(pairs("qwen2vl"), ONE_THREAD)
    side = 32
    values = np.random.default_rng(0).standard_normal((side * side, HIDDEN)).astype(np.float32)
    rows, columns = np.divmod(np.arange(side * side, dtype=np.int32), side)
    positions = np.stack([np.zeros_like(rows), rows, columns], axis=1)
    cache = language.new_cache()
    language.prefill(cache, [TextChunk(BEFORE, 0), ImageEmbeds(values, "large", positions, side)])
    assert (cache.num_tokens, cache.next_position) == (4 + side * side, 4 + side)
    assert np.isfinite(language.decode(cache, 60)).all()
    with pytest.raises(ValueError, match="tear"):
        cache.trim(600)
    language.close()


def test_pictures_of_gemma_go_in_at_once_however_many_tokens_they_have(tmp_path: Path) -> None:
    spec = write_pair(tmp_path, "gemma3", image_size=128, scale_factor=1)
    vision, language = load_cutter(spec), llama_engine.load_language(spec, ONE_THREAD)
    assert vision.rules.prefill_cut == "block"
    grid = vision.cut(frame(100, 100))
    (unit,) = grid.units
    assert unit.num_tokens == 1024
    embeds = vision.encode(unit)
    assert not embeds.is_causal
    cache = language.new_cache()
    first, last = grid.markers
    run = [TextChunk((*BEFORE, *first), 0), embeds, TextChunk((*last, *BEHIND), 0)]
    found, expected = language.prefill(cache, run), helper_logits(spec, frame(100, 100).pixels)
    assert found is not None
    assert np.linalg.norm(found - expected) < 3e-3 * np.linalg.norm(expected)
    with pytest.raises(ValueError, match="tear"):
        cache.trim(100)
    vision.close()
    language.close()


def test_a_block_that_does_not_fit_into_a_pass_is_refused_and_does_not_abort() -> None:
    language = llama_engine.load_language(find_model("bundled"), ONE_THREAD)
    cache = language.new_cache()
    values = np.zeros((600, language.spec.hidden_size), np.float32)
    with pytest.raises(EngineFault, match="at once"):
        language.prefill(cache, [ImageEmbeds(values, "block", is_causal=False)])
    assert cache.num_tokens == 0
    assert language.prefill(cache, [ImageEmbeds(values[:500], "block", is_causal=False)]) is not None
    language.close()


def test_tokens_of_a_block_see_each_other_and_others_do_not() -> None:
    language = llama_engine.load_language(find_model("bundled"), ONE_THREAD)
    values = np.random.default_rng(0).standard_normal((8, language.spec.hidden_size)).astype(np.float32)
    logits: dict[bool, NDArray[np.float32]] = {}
    for is_causal in (True, False):
        cache = language.new_cache()
        found = language.prefill(cache, [ImageEmbeds(values, "", is_causal=is_causal), TextChunk((5,), 8)])
        assert found is not None
        logits[is_causal] = found
        cache.close()
    assert np.abs(logits[True] - logits[False]).max() > 1e-2
    cache = language.new_cache()  # afterwards attention is causal again
    found = language.prefill(cache, [ImageEmbeds(values, ""), TextChunk((5,), 8)])
    assert found is not None
    np.testing.assert_allclose(found, logits[True], atol=1e-2)
    language.close()


SIZES = [(1, 1), (1, 100), (100, 1), (2, 3), (31, 33), (64, 64), (65, 64), (300, 200), (37, 512)]


@pytest.mark.parametrize("family", [*PAIRS, "bundled"])
def test_pictures_of_any_size_are_cut(pairs: Callable[[str], ModelSpec], family: str) -> None:
    vision = load_cutter(pairs(family))
    for size in SIZES:
        grid = vision.cut(frame(*size))
        assert grid.units
        assert len(grid.markers) == len(grid.units) + 1
        assert vision.encode(grid.units[-1]).values.shape == (grid.units[-1].num_tokens, vision.spec.hidden_size)
    for size in ((1, 101), (202, 2), (9000, 9000)):
        with pytest.raises(ImageError):
            vision.cut(Frame(np.broadcast_to(np.uint8(7), (*size, 3)), 0.0, 0.0))
    vision.close()


def test_the_bundled_pair_alone_writes_pictures_as_our_own_family_does(pairs: Callable[[str], ModelSpec]) -> None:
    model = find_model("bundled")
    family, tokenizer = Idefics3(model), HFTokenizer(model)
    vision = load_cutter(pairs("bundled"))
    for size in ((60, 100), (128, 128), (40, 200), (200, 40), (90, 128)):
        ours, grid = family.tile(frame(*size)), vision.cut(frame(*size))
        assert len(grid.units) == len(ours.units)
        plan = family.layout([Message("user", (ours,))], tokenizer)
        texts = [chunk.token_ids for chunk in plan.chunks if isinstance(chunk, TextChunk)]
        assert [tuple(one) for one in grid.markers[1:-1]] == texts[1:-1]
        assert texts[0][-len(grid.markers[0]) :] == grid.markers[0]
        assert texts[-1][: len(grid.markers[-1])] == grid.markers[-1]
    vision.close()


def test_keys_tell_pictures_and_their_parts_apart(pairs: Callable[[str], ModelSpec]) -> None:
    vision = load_cutter(pairs("bundled"))
    one, same, other = (vision.cut(frame(60, 100, seed)) for seed in (0, 0, 1))
    keys = [unit.key for unit in one.units]
    assert len(set(keys)) == len(keys)
    assert [unit.key for unit in same.units] == keys
    assert set(keys).isdisjoint(unit.key for unit in other.units)
    turned = frame(60, 100).pixels.reshape(100, 60, 3)
    assert set(keys).isdisjoint(unit.key for unit in vision.cut(Frame(turned, 0.0, 0.0)).units)
    vision.close()


def test_pictures_are_cut_on_many_threads_while_the_encoder_works(pairs: Callable[[str], ModelSpec]) -> None:
    vision = load_cutter(pairs("bundled"))
    expected = vision.encode(vision.cut(frame(60, 100)).units[0]).values
    errors: list[BaseException] = []

    def cut(seed: int) -> None:
        try:
            for _ in range(30):
                assert len(vision.cut(frame(60, 100, seed)).units) == 5
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=cut, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    unit = vision.cut(frame(60, 100)).units[0]
    for _ in range(30):
        np.testing.assert_array_equal(vision.encode(unit).values, expected)
    for thread in threads:
        thread.join()
    assert not errors
    vision.close()


def test_closing_waits_for_those_who_cut_and_refuses_those_who_come_later(pairs: Callable[[str], ModelSpec]) -> None:
    vision = load_cutter(pairs("bundled"))
    started = threading.Event()
    outcomes: list[int | str] = []

    def cut() -> None:
        while True:
            started.set()
            try:
                outcomes.append(len(vision.cut(frame(300, 400)).units))
            except EngineFault as error:
                outcomes.append(str(error))
                return

    thread = threading.Thread(target=cut)
    thread.start()
    started.wait()
    vision.close()
    thread.join()
    assert "closed" in str(outcomes[-1])
    with pytest.raises(EngineFault, match="closed"):
        vision.cut(frame(60, 100))


def test_cut_pictures_outlive_the_encoder_and_each_other(pairs: Callable[[str], ModelSpec]) -> None:
    vision = load_cutter(pairs("qwen2vl"))
    grid = vision.cut(frame(60, 100))
    vision.close()
    with pytest.raises(EngineFault, match="closed"):
        vision.encode(grid.units[0])
    dropper = threading.Thread(target=lambda: gc.collect())
    del grid
    dropper.start()
    dropper.join()


def test_a_unit_that_somebody_else_cut_is_refused(pairs: Callable[[str], ModelSpec]) -> None:
    vision = load_cutter(pairs("gemma3"))
    with pytest.raises(EngineFault, match="not cut"):
        vision.encode(ImageUnit.of(np.zeros((32, 32, 3), np.uint8), "image"))
    vision.close()


def test_an_encoder_whose_markers_the_text_model_does_not_have_is_refused(tmp_path: Path) -> None:
    folder = find_model("bundled").path / "gguf"
    (tmp_path / "mmproj.gguf").symlink_to(folder / "mmproj-edge-vl-bundled-f16.gguf")
    write_text(tmp_path / "text.gguf", "llama", hidden=256)
    with pytest.raises(ModelError, match="markers"):
        llama_engine.load_vision(find_model(tmp_path), ONE_THREAD)


def test_kinds_of_encoder_that_the_seam_cannot_express_are_refused(tmp_path: Path) -> None:
    write_text(tmp_path / "text.gguf", "llama")
    write_vision(tmp_path / "mmproj.gguf", "hunyuanvl")
    with pytest.raises(ModelError, match="four dimensions"):
        llama_engine.load_vision(find_model(tmp_path), ONE_THREAD)
