"""When something has changed in a picture, and when not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_vl import Frame, MotionGate, RequestError

Pixels = NDArray[np.uint8]
STEP_S = 0.1


def textured(height: int = 240, width: int = 320, *, seed: int = 0) -> NDArray[np.float32]:
    """Return a scene with edges and areas: float32 (height, width, 3)."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(40, 200, (height // 20, width // 20, 3))
    return coarse.repeat(20, 0).repeat(20, 1).astype(np.float32)


def noisy(scene: NDArray[np.float32], rng: np.random.Generator, sigma: float) -> Pixels:
    return np.clip(scene + rng.normal(0, sigma, scene.shape), 0, 255).astype(np.uint8)


def with_object(scene: NDArray[np.float32], share: float, color: tuple[int, int, int]) -> NDArray[np.float32]:
    """Put a square that covers so much of the picture into it."""
    height, width = scene.shape[:2]
    side = round((share * height * width) ** 0.5)
    changed = scene.copy()
    changed[70 : 70 + side, 110 : 110 + side] = color
    return changed


class Stream:
    """Shows pictures to a gate, one every tenth of a second."""

    def __init__(self, gate: MotionGate) -> None:
        self.gate = gate
        self.now_s = 1000.0

    def show(self, pixels: Pixels) -> bool:
        self.now_s += STEP_S
        return self.gate.passes(Frame(pixels, self.now_s, 0.0))


@pytest.fixture
def stream() -> Stream:
    return Stream(MotionGate(max_silence_s=None))


def test_the_first_frame_passes_and_an_equal_one_does_not(stream: Stream) -> None:
    pixels = textured().astype(np.uint8)
    assert [stream.show(pixels) for _ in range(4)] == [True, False, False, False]


@pytest.mark.parametrize(("side", "sigma"), [(64, 10.0), (64, 20.0), (64, 30.0), (100, 30.0), (160, 30.0)])
def test_noise_does_not_open_it_on_a_small_region_and_an_object_does(stream: Stream, side: int, sigma: float) -> None:
    rng = np.random.default_rng(1)
    scene = textured(200, 200)[:side, :side]
    stream.show(noisy(scene, rng, sigma))
    assert not any(stream.show(noisy(scene, rng, sigma)) for _ in range(60))
    scene[side // 2 : side // 2 + side // 4, side // 4 : side // 2] = 250
    assert stream.show(noisy(scene, rng, sigma))


@pytest.mark.parametrize("amplitude", [8, 15, 20])
def test_the_bands_of_a_lamp_that_flickers_do_not_open_it_and_an_object_in_them_does(
    stream: Stream, amplitude: int
) -> None:
    scene = textured()
    down = np.arange(scene.shape[0])[:, None, None] / scene.shape[0]

    def lit(number: int) -> NDArray[np.float32]:
        bands: NDArray[np.float32] = scene + amplitude * np.sin(2 * np.pi * (1.5 * down + 0.37 * number))
        return bands

    stream.show(lit(0).astype(np.uint8))
    assert not any(stream.show(lit(number).astype(np.uint8)) for number in range(1, 60))
    assert stream.show(with_object(lit(60), 0.02, (230, 230, 40)).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("sigma", [3.0, 10.0, 25.0])
def test_noise_does_not_open_it(stream: Stream, sigma: float) -> None:
    rng, scene = np.random.default_rng(2), textured()
    assert [stream.show(noisy(scene, rng, sigma)) for _ in range(60)] == [True] + [False] * 59


def test_light_that_drifts_slowly_does_not_open_it(stream: Stream) -> None:
    rng, scene = np.random.default_rng(3), textured() * 0.6
    passed = [stream.show(noisy(scene * (1 + 0.004 * number), rng, 4.0)) for number in range(150)]
    assert sum(passed) == 1


def test_a_cloud_or_an_exposure_that_follows_does_not_open_it(stream: Stream) -> None:
    scene = textured() * 0.7 + 30
    stream.show(scene.astype(np.uint8))
    assert not stream.show((scene + 15).astype(np.uint8))


@pytest.mark.parametrize("color", [(250, 250, 250), (5, 5, 5), (220, 20, 30)])
@pytest.mark.parametrize("sigma", [0.0, 10.0])
def test_an_object_of_two_percent_opens_it(stream: Stream, color: tuple[int, int, int], sigma: float) -> None:
    rng, scene = np.random.default_rng(4), np.full((240, 320, 3), 120, np.float32)
    for _ in range(20):
        stream.show(noisy(scene, rng, sigma))
    assert stream.show(noisy(with_object(scene, 0.02, color), rng, sigma))
    assert 0.01 <= stream.gate.changed_share <= 0.04


def test_an_object_as_bright_as_the_background_opens_it_by_its_colour(stream: Stream) -> None:
    scene = np.full((240, 320, 3), (120, 120, 120), np.float32)
    stream.show(scene.astype(np.uint8))
    assert stream.show(with_object(scene, 0.02, (190, 50, 120)).astype(np.uint8))


def test_an_object_smaller_than_the_threshold_does_not_open_it() -> None:
    scene = np.full((240, 320, 3), 120, np.float32)
    small = with_object(scene, 0.02, (250, 250, 250)).astype(np.uint8)
    for threshold, opens in ((0.01, True), (0.1, False)):
        stream = Stream(MotionGate(threshold, max_silence_s=None))
        stream.show(scene.astype(np.uint8))
        assert stream.show(small) is opens


def test_a_lamp_that_is_switched_on_opens_it(stream: Stream) -> None:
    scene = textured() * 0.3
    stream.show(scene.astype(np.uint8))
    assert stream.show((scene + 40).astype(np.uint8))


def test_what_stays_becomes_background(stream: Stream) -> None:
    scene = np.full((240, 320, 3), 120, np.float32)
    parked = with_object(scene, 0.05, (200, 200, 200)).astype(np.uint8)
    stream.show(scene.astype(np.uint8))
    passed = [stream.show(parked) for _ in range(400)]
    assert passed[0]
    assert not any(passed[300:])  # after 30 seconds
    assert stream.show(scene.astype(np.uint8))  # and when it leaves, that is seen


def test_after_a_maximum_of_silence_a_frame_passes_all_the_same() -> None:
    stream = Stream(MotionGate(max_silence_s=2.0))
    pixels = textured().astype(np.uint8)
    passed = [stream.show(pixels) for _ in range(61)]
    assert [number for number, is_passed in enumerate(passed) if is_passed] == pytest.approx([0, 20, 40, 60], abs=2)


def test_somebody_may_ask_for_the_next_frame(stream: Stream) -> None:
    pixels = textured().astype(np.uint8)
    stream.show(pixels)
    stream.gate.ask_for_one()
    assert [stream.show(pixels), stream.show(pixels)] == [True, False]


def test_another_size_begins_anew(stream: Stream) -> None:
    stream.show(textured().astype(np.uint8))
    assert stream.show(textured(480, 640).astype(np.uint8))


@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (700, 1), (3, 5), (97, 131), (720, 1280)])
def test_every_size_of_picture_is_looked_at(stream: Stream, shape: tuple[int, int]) -> None:
    dark, bright = (np.full((*shape, 3), level, np.uint8) for level in (20, 220))
    assert [stream.show(dark), stream.show(dark), stream.show(bright)] == [True, False, True]


@pytest.mark.parametrize(
    "make", [lambda: MotionGate(0), lambda: MotionGate(1.5), lambda: MotionGate(max_silence_s=0.0)]
)
def test_limits_that_make_no_sense_are_refused(make: Callable[[], MotionGate]) -> None:
    with pytest.raises(RequestError):
        make()
