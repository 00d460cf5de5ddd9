"""KV policies on llama.cpp: what becomes of each, and what is refused before native code can abort."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_vl.engine import Engine, LaneOptions, LanguageModel
from edge_vl.errors import RequestError
from edge_vl.kv_policy import KVPolicy, KVPrecision, parse_kv_policy
from edge_vl.model_spec import ModelSpec
from edge_vl.models import find_model
from edge_vl.plan import TextChunk
from edge_vl.testing import EngineContract
from edge_vl_llama_cpp import engine as llama_engine
from edge_vl_llama_cpp import flash_attention
from edge_vl_llama_cpp.context import make_context, plan_context
from edge_vl_llama_cpp.files import GGUFFile, find_text_file
from edge_vl_llama_cpp.flash_attention import check_flash_attention, runs_flash_attention
from edge_vl_llama_cpp.kv_types import KV_TYPES, choose_kv, entry_bytes, grant_kv
from edge_vl_llama_cpp.library import Library, open_library
from edge_vl_llama_cpp.native_model import ModelPool, NativeModel

HEAD_DIM = 32
NUM_TOKENS = 100
PROMPT = TextChunk(tuple(range(5, 5 + NUM_TOKENS)), 0)
BITS = {"f32": 32, "f16": 16, "int8": 8.5, "int4": 4.5}
UNKNOWN_TO_SET_ROWS = 18
"""iq3_xxs, a type that not even the CPU writes into a cache."""


def options(kv: str) -> LaneOptions:
    return LaneOptions(threads=1, context_length=256, kv=parse_kv_policy(kv))


def logits_of(kv: str) -> NDArray[np.float32]:
    language = llama_engine.load_language(find_model("bundled"), options(kv))
    cache = language.new_cache()
    logits = language.prefill(cache, [PROMPT])
    assert logits is not None
    cache.close()
    language.close()
    return logits


class TestQuantisedCache(EngineContract):
    """Forks, trims and split prompts keep what they promise with quantised keys and values."""

    kv = "k8v4"
    tolerance = 0.02
    has_vision = False

    def engine(self) -> Engine:
        return llama_engine

    def model(self) -> ModelSpec:
        return find_model("bundled")

    def options(self) -> LaneOptions:
        return options(self.kv)


class TestExactCache(TestQuantisedCache):
    """So they do without flash attention, where values lie transposed."""

    kv = "f32"
    tolerance = 3e-3


@pytest.fixture(scope="module")
def exact() -> NDArray[np.float32]:
    """Logits with a cache in f32."""
    return logits_of("f32")


@pytest.fixture(scope="module")
def text_file() -> GGUFFile:
    return find_text_file(find_model("bundled"), "auto")


@pytest.fixture(scope="module")
def native(text_file: GGUFFile) -> Iterator[NativeModel]:
    library = open_library()
    model = ModelPool().open(library, text_file.path, library.device("cpu"), with_weights=True)
    yield model
    model.close()


@pytest.mark.parametrize(
    ("kv", "tolerance"),
    [("f16", 2e-3), ("int8", 0.01), ("k8v16", 0.01), ("k16v8", 0.01), ("k8v4", 0.05), ("int4", 0.05)],
)
def test_keys_and_values_are_kept_in_the_precisions_that_are_named(
    kv: str, tolerance: float, exact: NDArray[np.float32]
) -> None:
    language = llama_engine.load_language(find_model("bundled"), options(kv))
    spec = language.spec
    assert spec.kv == kv
    cache = language.new_cache()
    found = language.prefill(cache, [PROMPT])
    assert found is not None
    difference = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    assert 0 < difference <= tolerance
    text = parse_kv_policy(kv).text
    assert text is not None
    values = spec.num_layers * spec.num_kv_heads * spec.head_dim
    assert cache.nbytes == NUM_TOKENS * values * (BITS[text.keys] + BITS[text.values]) / 8
    cache.close()
    language.close()


def test_auto_is_f16_to_the_bit(exact: NDArray[np.float32]) -> None:
    auto = logits_of("auto")
    assert np.array_equal(auto, logits_of("f16"))
    assert not np.array_equal(auto, exact), "f32 would be rounded to f16 by flash attention"


def read_state(native: NativeModel, text_file: GGUFFile, kv: str) -> tuple[bool, list[tuple[int, int]]]:
    """Compute one token and read what the context's saved state says of its cache.

    Returns:
        Whether values are transposed, which they are without flash attention, and ggml's numbers of the types of each
        layer's keys and values.

    Source:
        llama_kv_cache::state_write_data of llama.cpp, src/llama-kv-cache.cpp: a flag, the number of layers, then for
        each layer its keys, then for each its values, all behind a type and 8 bytes of sizes.
    """
    library, llama = native.library, native.library.llama
    plan = plan_context(text_file, options(kv), 0, keeps_states=False)
    context = make_context(native, plan, library.device("cpu"))
    try:
        token = (llama.llama_token * 1)(5)
        assert llama.llama_decode(context, llama.llama_batch_get_one(token, 1)) == 0
        size = llama.llama_state_seq_get_size(context, 0)
        buffer = (ctypes.c_uint8 * size)()
        assert llama.llama_state_seq_get_data(context, buffer, size, 0) == size
    finally:
        llama.llama_free(context)
    num_layers = text_file.number("block_count")
    width = text_file.number("attention.head_count_kv") * HEAD_DIM
    sides = [KV_TYPES[plan.kv.keys], KV_TYPES[plan.kv.values]]
    steps = [4 + 8 + width * kind.block_bytes // kind.block for kind in sides]
    at = size - num_layers * sum(steps)
    is_transposed, num_stored = struct.unpack_from("<II", buffer, at - 8)
    assert num_stored == num_layers
    types: list[list[int]] = []
    for step in steps:
        types.append([struct.unpack_from("<i", buffer, at + layer * step)[0] for layer in range(num_layers)])
        at += num_layers * step
    return bool(is_transposed), list(zip(*types, strict=True))


@pytest.mark.parametrize(
    ("kv", "types", "is_flash"),
    [
        ("f32", (0, 0), False),
        ("k8v32", (8, 0), False),
        ("f16", (1, 1), True),
        ("int8", (8, 8), True),
        ("k8v4", (8, 2), True),
        ("int4", (2, 2), True),
    ],
)
def test_the_context_has_the_types_and_the_attention_that_were_asked_for(
    native: NativeModel, text_file: GGUFFile, kv: str, types: tuple[int, int], is_flash: bool
) -> None:
    is_transposed, found = read_state(native, text_file, kv)
    assert found == [types] * text_file.number("block_count")
    assert is_transposed == (not is_flash)


@pytest.mark.parametrize(("kv", "is_flash"), [("f32", False), ("k8v16", True), ("k16v8", True), ("int4", True)])
def test_flash_attention_is_what_runs_where_it_should_and_only_there(
    native: NativeModel, text_file: GGUFFile, kv: str, is_flash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, llama = native.library, native.library.llama
    describe = library.ggml.ggml_op_desc
    describe.restype, describe.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    computed: set[bytes] = set()

    @llama.ggml_backend_sched_eval_callback  # type: ignore[untyped-decorator]
    def note(tensor: int, _is_question: bool, _data: object) -> bool:
        computed.add(describe(tensor))
        return True

    settings = llama.llama_context_default_params()
    settings.cb_eval = note
    monkeypatch.setattr(llama, "llama_context_default_params", lambda: settings)
    plan = plan_context(text_file, options(kv), 0, keeps_states=False)
    context = make_context(native, plan, library.device("cpu"))
    try:
        token = (llama.llama_token * 1)(5)
        assert llama.llama_decode(context, llama.llama_batch_get_one(token, 1)) == 0
    finally:
        llama.llama_free(context)
    assert b"MUL_MAT" in computed
    assert (b"FLASH_ATTN_EXT" in computed) is is_flash
    assert (b"SOFT_MAX" in computed) is not is_flash


def test_quantised_values_without_flash_attention_are_what_llama_cpp_refuses(native: NativeModel) -> None:
    """The reason for asking first: it is not a matter of speed."""
    llama = native.library.llama
    settings = llama.llama_context_default_params()
    settings.n_ctx, settings.type_k, settings.type_v = 256, 8, 8
    settings.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
    with native.library.log.collect() as errors:
        assert not llama.llama_init_from_model(native.pointer, settings)
    assert any("requires flash_attn" in line for line in errors)


@pytest.mark.parametrize(
    ("kv", "words"),
    [
        ("text=int8,image=int4", "so image cannot be said"),
        ("image=int8", "so image cannot be said"),
        ("text=int4,first_layers=int8", "so first_layers cannot be said"),
        ("last_layers=f32", "so last_layers cannot be said"),
        ("k32v8", "rounds f32 keys to f16 in every step; keep keys in f16: k16v8"),
    ],
)
def test_what_llama_cpp_cannot_do_is_refused_before_anything_is_loaded(kv: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        llama_engine.load_language(find_model("bundled"), options(kv))
    assert words in str(caught.value)
    assert repr(parse_kv_policy(kv).name) in str(caught.value)
    assert caught.value.field == "kv"


def test_an_automatic_guard_asks_for_nothing(text_file: GGUFFile) -> None:
    assert parse_kv_policy("int4").wants_errors
    assert choose_kv(text_file, parse_kv_policy("int4")) == KVPrecision("int4", "int4")
    assert choose_kv(text_file, KVPolicy()) == KVPrecision("f16", "f16")


def changed(file: GGUFFile, architecture: str = "", **values: int) -> GGUFFile:
    """Return a file with other numbers, without its tensors."""
    architecture = architecture or file.architecture
    own = {key.split(".", 1)[1]: value for key, value in file.values.items() if key.startswith(f"{file.architecture}.")}
    own |= {f"attention.{key}": value for key, value in values.items()}
    prefixed = {f"{architecture}.{key}": value for key, value in own.items()}
    return GGUFFile(Path("other.gguf"), file.dtype, architecture, prefixed, {}, file.header)


@pytest.mark.parametrize(
    ("architecture", "values", "kv", "words"),
    [
        ("grok", {}, "int8", "does not have for grok; keep values in f16: k8v16"),
        ("deepseek2", {"key_length_mla": 192}, "k8v4", "keys and values of other.gguf together, so they cannot differ"),
        ("llama", {"key_length": 80}, "int8", "int8 (q8_0) needs heads of a multiple of 32 values and other.gguf has "),
        ("llama", {"value_length": 48}, "k16v4", "heads of 48; use f16"),
    ],
)
def test_models_that_do_not_allow_a_precision_are_named(
    text_file: GGUFFile, architecture: str, values: dict[str, int], kv: str, words: str
) -> None:
    file = changed(text_file, architecture, **values)
    with pytest.raises(RequestError) as caught:
        choose_kv(file, parse_kv_policy(kv))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "values", "kv"),
    [
        ("grok", {}, "int8"),
        ("deepseek2", {"key_length_mla": 192}, "k8v4"),
        ("llama", {"key_length": 80}, "int8"),
        ("llama", {}, "k32v4"),
        ("llama", {}, "text=int8,image=int4"),
    ],
)
def test_what_only_a_profile_wishes_for_is_passed_over_where_it_cannot_be_kept(
    text_file: GGUFFile, architecture: str, values: dict[str, int], kv: str
) -> None:
    file, wish = changed(text_file, architecture, **values), replace(options(kv), is_kv_wish=True)
    granted, (note,) = grant_kv(file, wish)
    assert granted == replace(options("auto"), is_kv_wish=False)
    assert note.startswith(f"KV cache: in f16 and not in the profile's {wish.kv.name}: ")
    with pytest.raises(RequestError) as caught:
        grant_kv(file, options(kv))
    assert note.endswith(str(caught.value))


def test_a_wish_that_can_be_kept_is(text_file: GGUFFile) -> None:
    wish = replace(options("k8v4"), is_kv_wish=True)
    assert grant_kv(text_file, wish) == (wish, ())


def test_a_model_is_loaded_and_planned_without_the_wish_and_says_so() -> None:
    model, wish = find_model("bundled"), replace(options("k32v4"), is_kv_wish=True)
    language = llama_engine.load_language(model, wish)
    assert language.spec.kv == "f16"
    assert language.spec.notes[0].startswith("KV cache: in f16 and not in the profile's k32v4: ")
    language.close()
    assert llama_engine.plan_memory(model, "language", wish) == llama_engine.plan_memory(
        model, "language", options("f16")
    )
    with pytest.raises(RequestError, match="k32v4"):
        llama_engine.plan_memory(model, "language", options("k32v4"))


def test_a_wish_is_passed_over_where_the_device_has_no_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attention, "runs_flash_attention", lambda *_: False)
    language = llama_engine.load_language(find_model("bundled"), replace(options("int8"), is_kv_wish=True))
    assert language.spec.kv == "f16"
    assert "needs flash attention" in language.spec.notes[0]
    language.close()


def test_what_such_a_model_does_allow_is_taken(text_file: GGUFFile) -> None:
    assert choose_kv(changed(text_file, "grok"), parse_kv_policy("k8v16")).name == "k8v16"
    assert choose_kv(changed(text_file, "deepseek2", key_length_mla=192), parse_kv_policy("int8")).name == "int8"
    assert choose_kv(changed(text_file, key_length=80, value_length=64), parse_kv_policy("k16v8")).name == "k16v8"


def test_keys_and_values_are_billed_apart(text_file: GGUFFile) -> None:
    per_side = text_file.number("block_count") * text_file.number("attention.head_count_kv")
    file = changed(text_file, key_length=64, value_length=128)
    assert entry_bytes(file, KVPrecision("int8", "int4")) == per_side * (64 * 8.5 + 128 * 4.5) / 8
    assert entry_bytes(file, KVPrecision("f32", "f16")) == per_side * (64 * 4 + 128 * 2)


@pytest.mark.parametrize("widths", [(32, 32), (64, 64), (256, 256), (576, 512)])
@pytest.mark.parametrize("types", [(8, 8), (8, 2), (2, 2), (1, 1)])
def test_the_cpu_runs_flash_attention_on_every_type_that_is_offered(
    types: tuple[int, int], widths: tuple[int, int]
) -> None:
    library = open_library()
    assert runs_flash_attention(library, library.device("cpu"), types, widths, (8, 2))


@pytest.mark.parametrize("types", [(UNKNOWN_TO_SET_ROWS, 8), (8, UNKNOWN_TO_SET_ROWS)])
def test_a_type_that_a_device_does_not_write_is_found_without_an_abort(types: tuple[int, int]) -> None:
    library = open_library()
    assert not runs_flash_attention(library, library.device("cpu"), types, (256, 256), (8, 8))


class Unable:
    """A backend that runs everything but one operation, around the real functions that build graphs."""

    def __init__(self, ggml: Any, refuses: Callable[[int], bool]) -> None:
        self._ggml = ggml
        self.asked: list[int] = []

        def supports(device: int, operation: int) -> bool:
            self.asked.append(operation)
            return not refuses(len(self.asked))

        self.ggml_backend_dev_supports_op = supports

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ggml, name)


@pytest.mark.parametrize("refused", range(1, 7))
def test_one_operation_that_a_device_does_not_run_is_enough_for_a_clear_error(
    text_file: GGUFFile, refused: int
) -> None:
    library = open_library()
    backend = Unable(library.ggml, lambda number: number == refused)
    unable = Library(library.llama, library.mtmd, backend, library.log, library.version, library.devices)
    with pytest.raises(RequestError, match="does not have it on cpu for keys in q8_0, values in q4_0") as caught:
        check_flash_attention(unable, library.device("cpu"), text_file, KVPrecision("int8", "int4"))
    assert "k8v16, which needs none" in str(caught.value)
    assert caught.value.field == "kv"
    assert len(backend.asked) == refused


def test_the_device_is_asked_only_where_flash_attention_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attention, "runs_flash_attention", lambda *_: False)
    loaded: list[LanguageModel] = [
        llama_engine.load_language(find_model("bundled"), options(kv)) for kv in ("auto", "f32", "k8v16")
    ]
    for kv in ("int8", "k16v4"):
        with pytest.raises(RequestError, match=f"a KV cache in {kv} needs flash attention"):
            llama_engine.load_language(find_model("bundled"), options(kv))
    for language in loaded:
        language.close()


def test_precisions_are_described_as_far_as_the_heads_allow() -> None:
    facts = llama_engine.describe(find_model("bundled"))
    assert facts["kv_precisions"] == ["f32", "f16", "int8", "int4"]
    assert not facts.get("kv_parts")
