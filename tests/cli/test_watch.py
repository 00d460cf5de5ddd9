"""`edge-vl watch`."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_vl import Frame, Token
from edge_vl.cli.watch_view import WatchView
from edge_vl.drawn_scene import Scene, draw_scene
from edge_vl.sources.synthetic import SyntheticCapture
from edge_vl.watch_events import AnswerBegan, AnswerGivenUp
from tests.cli.conftest import RunCli

TOP_LEFT = "What is at the top left?"
WAIT_S = 30.0


def draw(folder: Path, shapes: list[str]) -> Path:
    """Draw pictures with a red shape at the top left each."""
    folder.mkdir()
    for number, shape in enumerate(shapes):
        scene = Scene(((shape, "red", "top left"),), 230)
        Image.fromarray(draw_scene(scene)).save(folder / f"{number}.png")
    return folder


def start(*arguments: str, **options: int) -> subprocess.Popen[str]:
    """Run `edge-vl watch` in a process of its own, where SIGINT interrupts."""
    command = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from edge_vl.cli import main; sys.argv[0] = 'edge-vl'; main()"
    )
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-c", command, "watch", *arguments], text=True, **streams)  # type: ignore[call-overload, no-any-return]


def test_answers_about_a_camera_are_true_and_streamed_line_by_line(cli: RunCli) -> None:
    done = cli("watch", "synthetic:320x240@20", TOP_LEFT, "--max-answers", "3")
    assert done.code == 0
    lines = done.out.splitlines()
    truth = SyntheticCapture(320, 240, 20.0).truth(0).at("top left")
    assert len(lines) == 3
    for line in lines:
        assert re.fullmatch(rf"\d\d:\d\d:\d\d {truth}  \[\d+\.\d\d s old, \d+ dropped\]", line)
    assert "the camera is online" in done.err
    assert re.search(r"3 answers about \d+ frames in \d+\.\d s", done.err)


def test_a_folder_ends_by_itself_and_every_picture_is_answered(cli: RunCli, tmp_path: Path) -> None:
    folder = draw(tmp_path / "pictures", ["circle", "star", "cross"])
    done = cli("watch", str(folder), TOP_LEFT)
    assert done.code == 0
    assert done.out.splitlines() == ["0.png: a red circle", "1.png: a red star", "2.png: a red cross"]


def test_json_is_one_object_per_answer_with_time_age_and_drops(cli: RunCli) -> None:
    began_s = time.time()
    done = cli(
        "watch", "synthetic:320x240@20", TOP_LEFT, "--json", "--max-answers", "3", "--every-s", "0.2", "--name", "door"
    )
    assert done.code == 0
    records = [json.loads(line) for line in done.out.splitlines()]
    assert len(records) == 3
    for record in records:
        frame = record["frame"]
        assert frame["source"] == "door"
        assert 0 <= frame["age_s"] < 5
        assert frame["captured_at"] >= time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(began_s))
        assert record["first_token_s"] <= record["total_s"]
    numbers = [record["frame"]["index"] for record in records]
    for before, after, record in zip(numbers, numbers[1:], records[1:], strict=False):
        assert record["dropped"] == after - before - 1
    assert records[-1]["counts"]["answers"] == 3


def test_a_recording_is_answered_frame_by_frame_when_it_is_not_paced(cli: RunCli, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "walk.avi"
    drawn = SyntheticCapture(320, 240, 10.0)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (320, 240))
    for number in range(6):
        writer.write(drawn.draw(number)[..., ::-1])
    writer.release()
    done = cli("watch", str(path), "Describe the picture.", "--as-fast-as-possible", "--json")
    assert done.code == 0
    records = [json.loads(line) for line in done.out.splitlines()]
    assert [record["frame"]["index"] for record in records] == list(range(6))
    assert {record["text"] for record in records} == {drawn.truth(0).text}


def test_a_yes_no_question_tells_when_its_answer_changes_and_not_for_one_odd_frame(cli: RunCli, tmp_path: Path) -> None:
    folder = draw(tmp_path / "pictures", ["circle", "circle", "star", "circle", "circle", "star", "star", "star"])
    done = cli("watch", str(folder), "--when", "Is there a red circle?")
    assert done.code == 0
    assert done.out.splitlines() == ["1.png: Is there a red circle? yes", "6.png: Is there a red circle? no"]
    assert "neither yes nor no" not in done.err


def test_answers_that_are_neither_yes_nor_no_are_counted(cli: RunCli, tmp_path: Path) -> None:
    folder = draw(tmp_path / "pictures", ["circle", "star", "circle"])
    done = cli("watch", str(folder), "--when", TOP_LEFT)
    assert (done.code, done.out) == (0, "")
    assert f"3 answers to '{TOP_LEFT}' were neither yes nor no" in done.err


def test_a_question_and_yes_no_questions_are_about_the_same_frame(cli: RunCli, tmp_path: Path) -> None:
    folder = draw(tmp_path / "pictures", ["circle", "star"])
    asked = ("--when", "Is there a red circle?", "--when", "Is there a red star?", "--when-after", "1")
    done = cli("watch", str(folder), TOP_LEFT, *asked, "--json")
    said = [
        (record["text"], [state["state"] for state in record["when"]], [state["changed"] for state in record["when"]])
        for record in map(json.loads, done.out.splitlines())
    ]
    assert said == [("a red circle", [True, False], [True, True]), ("a red star", [False, True], [True, True])]


def test_on_motion_only_what_changed_is_answered(cli: RunCli, tmp_path: Path) -> None:
    folder = draw(tmp_path / "pictures", ["circle", "circle", "circle", "star", "star"])
    done = cli("watch", str(folder), TOP_LEFT, "--on-motion", "--json", "--loop", "--max-answers", "3")
    texts = [json.loads(line)["text"] for line in done.out.splitlines()]
    assert texts[:2] == ["a red circle", "a red star"]
    assert "quiet" in done.err


def test_answers_are_kept_with_their_frames(cli: RunCli, tmp_path: Path) -> None:
    folder = draw(tmp_path / "pictures", ["circle", "star"])
    done = cli("watch", str(folder), TOP_LEFT, "--save-dir", str(tmp_path / "kept"))
    assert done.code == 0
    kept = sorted((tmp_path / "kept").glob("*.json"))
    assert [json.loads(path.read_text())["text"] for path in kept] == ["a red circle", "a red star"]
    facts = json.loads(kept[0].read_text())
    with Image.open(tmp_path / "kept" / facts["picture"]) as picture:
        assert picture.size == (320, 240)
    assert "2 saved" in done.err


def test_frames_are_turned_and_cut_before_they_are_looked_at(cli: RunCli, tmp_path: Path) -> None:
    folder = draw(tmp_path / "pictures", ["circle"])
    # Turned upside down the circle is at the bottom right; of that the right half is kept.
    done = cli("watch", str(folder), "Describe the picture.", "--rotate", "180", "--region", "0.25,0,1,1", "--json")
    record = json.loads(done.out)
    assert (record["frame"]["width"], record["frame"]["height"]) == (240, 240)
    assert record["text"] == "a red circle at the bottom right"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_the_normal_end_of_a_watch(number: signal.Signals) -> None:
    with start("synthetic:320x240@20", TOP_LEFT, "--every-s", "0.05") as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(number)
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    assert re.search(r"\d+ answers about \d+ frames", err)
    assert "Traceback" not in err


def test_a_camera_that_is_away_is_waited_for_and_its_password_is_shown_nowhere() -> None:
    with start("rtsp://me:geheim@127.0.0.1:9/x", TOP_LEFT) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "the camera is offline" in line
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert "geheim" not in line + out + err


def test_a_reader_who_goes_away_ends_it_without_complaint() -> None:
    with start("synthetic:320x240@20", TOP_LEFT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.wait(WAIT_S)
    assert process.returncode == 7
    assert "Traceback" not in err
    assert "Broken" not in err


def test_on_a_terminal_a_status_line_says_how_it_goes() -> None:
    leader, follower = pty.openpty()
    with start("synthetic:320x240@20", TOP_LEFT, "--max-answers", "8", "--every-s", "0.1", stderr=follower) as process:
        os.close(follower)
        assert process.stdout is not None
        shown = b""
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            if select.select([leader], [], [], 0.2)[0]:
                try:
                    shown += os.read(leader, 65536)
                except OSError:  # the other end is closed
                    break
        out = process.stdout.read()
        process.wait(WAIT_S)
    os.close(leader)
    assert process.returncode == 0
    assert len(out.splitlines()) == 8
    assert "\x1b" not in out
    assert re.search(
        rb"online \| \d+\.\d fps \| frame \d+\.\d\d s old \| TTFT \d+ ms \| \d+ answers \| \d+ dropped", shown
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("synthetic",), 2, "needs a question"),
        (("nowhere.jpg", TOP_LEFT), 3, "no file or folder"),
        (("rstp://u:geheim@cam", TOP_LEFT), 2, "did you mean rtsp"),
        (("synthetic", TOP_LEFT, "--region", "1,2,3"), 2, "--region"),
        (("synthetic", TOP_LEFT, "--region", "0.5,0,0.4,1"), 2, "region"),
        (("synthetic", TOP_LEFT, "--rotate", "45"), 2, "rotate_deg"),
        (("synthetic", TOP_LEFT, "--max-fps", "0"), 2, "max_fps"),
        (("synthetic", TOP_LEFT, "--read-timeout-s", "0"), 2, "read_timeout_s"),
        (("synthetic", TOP_LEFT, "--loop"), 2, "is a camera"),
        (("synthetic", TOP_LEFT, "--every-s", "-1"), 2, "every_s"),
        (("synthetic", TOP_LEFT, "--on-motion", "--max-silence-s", "0"), 2, "max_silence_s"),
        (("synthetic", TOP_LEFT, "--save-dir", "/dev/null/x"), 2, "cannot be saved"),
        (("synthetic", TOP_LEFT, "--mqtt", "mqtt://host"), 2, "mqtt://host/prefix/node"),
        (("synthetic", TOP_LEFT, "--mqtt", "mqtt://u:geheim@host/edge_vl/porch"), 2, "EDGE_VL_MQTT_PASSWORD"),
        (("rtsp://cam/x", TOP_LEFT, "--username", "u", "--password-file", "/nowhere"), 2, "password_file"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_a_reason(
    cli: RunCli, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = cli("watch", *arguments)
    assert done.code == code
    assert words in done.err
    assert "geheim" not in done.out + done.err
    assert "Traceback" not in done.err


def test_a_camera_that_is_rarely_heard_of_may_take_an_hour(cli: RunCli, tmp_path: Path) -> None:
    folder = draw(tmp_path / "pictures", ["circle"])
    assert cli("watch", str(folder), TOP_LEFT, "--read-timeout-s", "3600").code == 0


def test_the_name_of_a_picture_does_not_steer_the_terminal(cli: RunCli, tmp_path: Path) -> None:
    folder = draw(tmp_path / "pictures", ["circle"])
    (folder / "0.png").rename(folder / "a\x1b[2J\n\x9b.png")
    (folder / "b\x1b.png").write_bytes(b"no picture")
    for options in ((), ("--when", "Is there a red circle?", "--when-after", "1")):
        done = cli("watch", str(folder), TOP_LEFT, *options)
        assert "a\N{REPLACEMENT CHARACTER}[2J \N{REPLACEMENT CHARACTER}.png: a red circle" in done.out
        assert not set("\x1b\x9b") & set(done.out + done.err)
    done = cli("watch", str(folder), TOP_LEFT, "--json")
    assert not set("\x1b\x9b") & set(done.out)
    assert json.loads(done.out)["frame"]["source"].endswith("a\x1b[2J\n\x9b.png")


def test_a_note_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    WatchView(as_json=False, shows_text=True, status=str).note("\x1b[2Jit came")
    assert capsys.readouterr().err == "edge-vl: \N{REPLACEMENT CHARACTER}[2Jit came\n"


def test_an_error_is_a_json_object_too(cli: RunCli) -> None:
    done = cli("watch", "nowhere.jpg", TOP_LEFT, "--json")
    assert json.loads(done.out)["error"]["type"] == "SourceError"


def test_tokens_are_shown_as_they_come_and_an_answer_that_is_given_up_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = WatchView(as_json=False, shows_text=True, status=str)
    frame = Frame(np.zeros((2, 2, 3), np.uint8), 0.0, time.time())
    view.on_event(AnswerBegan(frame, 0))
    assert re.fullmatch(r"\d\d:\d\d:\d\d ", capsys.readouterr().out)
    view.on_event(Token(1, "a\nred", "text", 0))
    assert capsys.readouterr().out == "a red"
    view.on_event(Token(2, "hm", "reasoning", 1))
    assert capsys.readouterr().out == ""
    view.on_event(AnswerGivenUp(frame, "newer"))
    assert capsys.readouterr().out == " [given up for a newer frame]\n"


def test_a_note_begins_a_line_of_its_own_where_both_outputs_are_one() -> None:
    code = (
        "import numpy, time; from edge_vl import Frame, Token; from edge_vl.cli.watch_view import WatchView; "
        "from edge_vl.watch_events import AnswerBegan; "
        "frame = Frame(numpy.zeros((2, 2, 3), numpy.uint8), 0.0, time.time(), 'a/b.png'); "
        "view = WatchView(as_json=False, shows_text=True, status=str); view.is_live = False; "
        "view.on_event(AnswerBegan(frame, 0)); view.on_event(Token(1, 'top right', 'text', 0)); "
        "view.note('one'); view.note('two'); view.on_event(Token(1, ' of it', 'text', 1)); "
        "view.answered(frame, {'frame': {'age_s': 1.0}, 'dropped': 0, 'when': []})"
    )
    mixed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert mixed.stdout == "b.png: top right\nedge-vl: one\nedge-vl: two\n of it\n"
    apart = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (apart.stdout, apart.stderr) == ("b.png: top right of it\n", "edge-vl: one\nedge-vl: two\n")
