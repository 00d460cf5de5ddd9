"""normalize_tile: every instruction set gives the bits of the reference, and the reference those of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_vl_kernels import available_isas, normalize_tile, status

COMPILED = available_isas()[1:]
HALF = (0.5, 0.5, 0.5)

needs_library = pytest.mark.skipif(not status().compiled, reason="installed without compiled kernels")


def noise(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


normalisations = st.tuples(
    st.floats(1e-4, 2.0),
    st.tuples(*[st.floats(-2.0, 2.0)] * 3),
    st.tuples(*[st.floats(1e-3, 2.0)] * 3),
)
steps = st.sampled_from([1, 2, 3, -1, -2])


@needs_library
@pytest.mark.parametrize("isa", COMPILED)
@settings(deadline=None)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 70),
    row_step=steps,
    column_step=steps,
    channel_step=st.sampled_from([1, -1]),
    transposed=st.booleans(),
    setting=normalisations,
    seed=st.integers(0, 1000),
)
def test_compiled_kernels_give_the_bits_of_the_reference_for_any_strides(
    isa: str,
    height: int,
    width: int,
    row_step: int,
    column_step: int,
    channel_step: int,
    transposed: bool,
    setting: tuple[float, tuple[float, float, float], tuple[float, float, float]],
    seed: int,
) -> None:
    pixels = noise(height, width, seed)[::row_step, ::column_step, ::channel_step]
    if transposed:
        pixels = pixels.transpose(1, 0, 2)

    expected = normalize_tile(pixels, *setting, isa="reference")

    np.testing.assert_array_equal(normalize_tile(pixels, *setting, isa=isa), expected)
    np.testing.assert_array_equal(normalize_tile(np.ascontiguousarray(pixels), *setting, isa=isa), expected)


@pytest.mark.parametrize("isa", ["auto", "reference"])
def test_a_tile_is_rescaled_normalised_and_planar(isa: str) -> None:
    pixels = np.array([[[0, 51, 255], [102, 204, 153]]], np.uint8)

    planar = normalize_tile(pixels, 1 / 255, (0.0, 0.2, 0.5), (1.0, 0.5, 0.25), isa=isa)

    assert planar.dtype == np.float32
    assert planar.shape == (3, 1, 2)
    np.testing.assert_allclose(planar[:, 0], [[0.0, 0.4], [0.0, 1.2], [2.0, 0.4]], atol=1e-6)


def test_the_reference_gives_the_bits_of_transformers() -> None:
    from transformers import image_transforms  # slow to import, and only here

    pixels = noise(64, 48)
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

    rescaled = image_transforms.rescale(pixels, 1 / 255, input_data_format="channels_last")
    expected = image_transforms.normalize(rescaled, mean, std, "channels_first", "channels_last")

    np.testing.assert_array_equal(normalize_tile(pixels, 1 / 255, mean, std, isa="reference"), expected)


@pytest.mark.parametrize("isa", ["auto", "reference"])
def test_the_result_is_written_into_the_buffer_that_was_given(isa: str) -> None:
    pixels = noise(8, 9)
    batch = np.zeros((2, 3, 8, 9), np.float32)

    result = normalize_tile(pixels, 1 / 255, HALF, HALF, out=batch[1], isa=isa)

    assert np.shares_memory(result, batch)
    np.testing.assert_array_equal(batch[1], normalize_tile(pixels, 1 / 255, HALF, HALF))
    assert not batch[0].any()


def test_a_read_only_picture_is_no_obstacle() -> None:
    pixels = noise(4, 4)
    pixels.flags.writeable = False

    assert normalize_tile(pixels, 1 / 255, HALF, HALF).shape == (3, 4, 4)


def read_only() -> NDArray[np.float32]:
    out = np.zeros((3, 4, 5), np.float32)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pixels": [[[0, 0, 0]]]}, "pixels must be a NumPy array, not list"),
        ({"pixels": noise(4, 5).astype(np.float32)}, r"not float32 \(4, 5, 3\)"),
        ({"pixels": noise(4, 5).astype(np.int8)}, r"not int8 \(4, 5, 3\)"),
        ({"pixels": np.zeros((4, 5), np.uint8)}, r"not uint8 \(4, 5\)"),
        ({"pixels": np.zeros((4, 5, 4), np.uint8)}, r"not uint8 \(4, 5, 4\)"),
        ({"pixels": np.zeros((0, 5, 3), np.uint8)}, "not empty"),
        ({"mean": (0.5, 0.5)}, "three values each, not 2 and 3"),
        ({"std": (0.5,) * 4}, "three values each, not 3 and 4"),
        ({"std": (0.5, 0.0, 0.5)}, "std must be > 0"),
        ({"std": (0.5, -1.0, 0.5)}, "std must be > 0"),
        ({"mean": (0.5, float("nan"), 0.5)}, "must be finite"),
        ({"rescale_factor": float("inf")}, "must be finite"),
        ({"out": [0.0]}, "out must be a NumPy array, not list"),
        ({"out": np.zeros((3, 5, 4), np.float32)}, r"out must be float32 \(3, 4, 5\), not float32 \(3, 5, 4\)"),
        ({"out": np.zeros((3, 4, 5))}, "not float64"),
        ({"out": np.zeros((3, 4, 10), np.float32)[:, :, ::2]}, "C-contiguous"),
        ({"out": read_only()}, "writable"),
        ({"isa": "sclar"}, "unknown instruction set 'sclar'; did you mean 'scalar'"),
        ({"isa": "z80"}, "known: auto, reference, scalar"),
    ],
)
def test_bad_input_is_refused_before_anything_is_touched(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"pixels": noise(4, 5), "rescale_factor": 1 / 255, "mean": HALF, "std": HALF}

    with pytest.raises(ValueError, match=message):
        normalize_tile(**(arguments | changed))


def test_a_buffer_that_overlaps_the_picture_is_refused() -> None:
    memory = np.zeros(3 * 4 * 5, np.float32)
    pixels = memory.view(np.uint8)[:60].reshape(4, 5, 3)

    with pytest.raises(ValueError, match="share memory"):
        normalize_tile(pixels, 1 / 255, HALF, HALF, out=memory.reshape(3, 4, 5))
