"""The camera that is drawn."""

from __future__ import annotations

import io
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from edge_vl import RequestError, Runtime, SourceError
from edge_vl.sources.camera import Camera
from edge_vl.sources.synthetic import MAX_NUMBER, SyntheticCapture, read_number


@settings(max_examples=30)
@given(st.integers(96, 700), st.integers(96, 500), st.integers(0, MAX_NUMBER))
def test_the_number_of_every_frame_can_be_read_again(width: int, height: int, number: int) -> None:
    assert read_number(SyntheticCapture(width, height).draw(number)) == number


@pytest.mark.parametrize("quality", [40, 95])
def test_the_number_survives_jpeg_and_another_size(quality: int) -> None:
    pixels = SyntheticCapture(320, 240).draw(1_234_567)
    data = io.BytesIO()
    Image.fromarray(pixels).resize((480, 300)).save(data, "JPEG", quality=quality)
    assert read_number(np.asarray(Image.open(data))) == 1_234_567


def test_what_holds_no_number_gives_none() -> None:
    pixels = SyntheticCapture(320, 240).draw(77)
    rng = np.random.default_rng(1)
    for other in (
        np.zeros((240, 320, 3), np.uint8),
        np.full((240, 320, 3), 230, np.uint8),
        pixels[:200],
        pixels[:, ::-1],
        pixels[:10, :10],
    ):
        assert read_number(np.ascontiguousarray(other)) is None
    noise = [read_number(rng.integers(0, 256, (240, 320, 3), np.uint8)) for _ in range(50)]
    assert noise.count(None) >= 45  # six bits of check


def test_frames_come_at_their_moments_and_a_late_reader_gets_the_one_of_now() -> None:
    capture = SyntheticCapture(96, 96, 50.0)
    numbers = []
    for late_s in (0.0, 0.0, 0.11, 0.0):
        time.sleep(late_s)
        assert capture.grab()
        number = read_number(capture.retrieve())
        assert number is not None
        assert time.monotonic() >= capture.started_s + number / capture.fps
        numbers.append(number)
    assert numbers == sorted(set(numbers))
    assert numbers[2] - numbers[1] >= 5


def test_the_same_number_gives_the_same_pixels_and_the_objects_move() -> None:
    one, other = SyntheticCapture(160, 120), SyntheticCapture(160, 120)
    assert np.array_equal(one.draw(40), other.draw(40))
    assert one.truth(40) == one.truth(44)
    assert not np.array_equal(one.draw(40)[:110], one.draw(44)[:110])


def test_after_a_while_other_objects_are_shown() -> None:
    capture = SyntheticCapture(160, 120, 10.0, scene_s=2.0)
    assert capture.truth(0) == capture.truth(19) != capture.truth(20)


def test_every_other_scene_has_a_red_circle_and_the_others_have_none() -> None:
    camera = SyntheticCapture(320, 240, 10.0, scene_s=1.0)
    scenes = [camera.truth(number * 10) for number in range(40)]
    has_target = ["a red circle at the" in scene.text for scene in scenes]
    assert has_target == [False, True] * 20
    assert len(set(scenes)) == 40


def test_the_bundled_model_answers_what_is_true() -> None:
    capture = SyntheticCapture(320, 240, 10.0, scene_s=1.0)
    with Runtime.open() as runtime:
        asked = [
            (runtime.ask(capture.draw(number), question).text, truth)
            for number in range(0, 200, 13)
            for question, truth in (
                ("What is at the top left?", capture.truth(number).at("top left")),
                ("Describe the picture.", capture.truth(number).text),
            )
        ]
    assert sum(said == truth for said, truth in asked) >= len(asked) - 1


def test_closing_wakes_a_reader_and_is_the_end() -> None:
    capture = SyntheticCapture(96, 96, 0.01)
    assert capture.grab()
    threading.Timer(0.02, capture.close).start()
    assert not capture.grab()


def test_nothing_can_be_retrieved_before_a_frame_was_grabbed() -> None:
    with pytest.raises(SourceError, match="grabbed"):
        SyntheticCapture().retrieve()


@pytest.mark.parametrize("options", [{"width": 95}, {"height": 5000}, {"width": 96.0}, {"fps": 0}, {"scene_s": 0}])
def test_a_camera_that_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(RequestError) as caught:
        SyntheticCapture(**options)  # type: ignore[arg-type]
    assert caught.value.field in options


def test_it_is_a_camera_like_any_other() -> None:
    with Camera(lambda: SyntheticCapture(96, 96, 100.0), name="drawn") as camera:
        frame = camera.wait_newer(-1, 5.0)
        assert frame is not None
        newer = camera.wait_newer(frame.index, 5.0)
        assert newer is not None
        numbers = [read_number(frame.pixels), read_number(newer.pixels)]
    assert None not in numbers
    assert numbers[0] < numbers[1]  # type: ignore[operator]
