"""`edge-vl cameras`: the list, and trying cameras."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_vl.sources import camera_list
from edge_vl.sources.camera_list import CameraList, FoundCamera, Way
from tests.cli.conftest import RunCli
from tests.mosquitto import free_port

FOUND = CameraList(
    (FoundCamera("synthetic:128x96@30", "HD [Webcam]", "v4l2", "uvcvideo", ("MJPG",), "/dev/v4l/by-id/usb-HD"),),
    {"opencv": Way(True, "4.12.0"), "picamera2": Way(False, "install it", camera_list.NOT_EXECUTED)},
    ("buy a camera",),
)


@pytest.fixture
def one_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(camera_list, "list_cameras", lambda: FOUND)
    monkeypatch.setattr("edge_vl.cli.cameras._LOOK_S", 0.3)


@pytest.mark.usefixtures("one_camera")
def test_it_tells_what_to_call_each_camera_and_which_ways_there_are(cli: RunCli) -> None:
    done = cli("cameras")

    assert done.code == 0
    assert "synthetic:128x96@30: HD [Webcam] (uvcvideo), gives MJPG" in done.out
    assert "also /dev/v4l/by-id/usb-HD" in done.out
    assert "never executed by this project" in done.out
    assert "buy a camera" in done.out


def test_the_name_that_a_camera_gives_itself_does_not_steer_the_terminal(
    cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = CameraList((FoundCamera("0", "HD\x1b]0;x\x07\nadvice \x9b31m", "v4l2", "uvcvideo"),), {}, ())
    monkeypatch.setattr(camera_list, "list_cameras", lambda: found)
    shown, listed = cli("cameras"), cli("cameras", "--json")
    assert len(shown.out.splitlines()) == 1
    assert not set("\x1b\x07\x9b") & set(shown.out + listed.out)
    assert json.loads(listed.out)["cameras"][0]["name"] == found.cameras[0].name


@pytest.mark.usefixtures("one_camera")
def test_the_listed_cameras_are_tried_when_asked_for(cli: RunCli) -> None:
    done = cli("cameras", "--probe", "--json")

    assert done.code == 0
    facts = json.loads(done.out)
    [probe] = facts["probes"]
    assert probe["is_ok"]
    assert (probe["source"], probe["width"], probe["height"]) == ("synthetic:128x96@30", 128, 96)
    assert probe["fps"] == pytest.approx(30, rel=0.5)
    assert 0 <= probe["first_frame_s"] < 10
    assert facts["cameras"][0]["source"] == "synthetic:128x96@30"


@pytest.mark.usefixtures("one_camera")
def test_a_camera_that_gives_nothing_is_told_without_its_password_and_fails(cli: RunCli) -> None:
    url = f"rtsp://me:s3cret@127.0.0.1:{free_port()}/cam"

    done = cli("cameras", "synthetic:128x96@30", url, "--timeout-s", "3")

    assert done.code == 3
    assert "works       synthetic:128x96@30: 128x96" in done.out
    assert "fails       rtsp://***@127.0.0.1" in done.out
    assert "nobody listens on port" in done.out
    assert "s3cret" not in done.out + done.err
    assert done.err == "", "what is in the list is not said a second time"


def test_what_is_no_camera_fails(cli: RunCli, tmp_path: Path) -> None:
    done = cli("cameras", str(tmp_path / "nothing"), "--json")

    assert done.code == 3
    [probe] = json.loads(done.out)["probes"]
    assert not probe["is_ok"]
    assert "there is no file" in probe["detail"]


def test_it_works_where_there_is_no_camera(cli: RunCli) -> None:
    done = cli("cameras")

    assert done.code == 0
    assert "opencv" in done.out
