"""Which cameras are there: nodes of Video4Linux as the kernel shows them, and the other ways."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge_vl.errors import SourceError
from edge_vl.sources.camera_list import NOT_EXECUTED, CameraList, list_cameras
from edge_vl.sources.v4l2_device import find_v4l2_devices
from tests.sources.v4l2_machine import CAPTURE, CAPTURE_MPLANE, M2M, META, STREAMING, V4l2Machine


def opencv(gstreamer: str) -> Any:
    return SimpleNamespace(__version__="4.12.0", getBuildInformation=lambda: f"    GStreamer:   {gstreamer}\n")


def missing(what: str) -> Any:
    raise SourceError(f"install {what}")


def listed(machine: V4l2Machine, **ways: Any) -> CameraList:
    ways = {"opencv": lambda: opencv("NO"), "picamera2": lambda: missing("picamera2")} | ways
    return list_cameras(machine.root, ioctl=machine.ioctl, **ways)


@pytest.fixture
def machine(tmp_path: Path) -> V4l2Machine:
    return V4l2Machine(tmp_path / "root")


def test_a_webcam_is_listed_with_what_to_call_it_and_what_it_gives(machine: V4l2Machine) -> None:
    machine.add(0, "HD Webcam: HD Webcam", by_id="usb-ACME_HD-video-index0")

    [camera] = listed(machine).cameras

    assert (camera.source, camera.name, camera.way, camera.driver) == (
        "/dev/video0",
        "HD Webcam: HD Webcam",
        "v4l2",
        "uvcvideo",
    )
    assert camera.formats == ("MJPG", "YUYV")
    assert camera.stable_source == "/dev/v4l/by-id/usb-ACME_HD-video-index0"


def test_nodes_that_give_no_pictures_are_left_out_and_the_others_come_by_number(machine: V4l2Machine) -> None:
    machine.add(10, "second", caps=CAPTURE_MPLANE | STREAMING, formats=("NV12",))
    machine.add(2, "first")
    machine.add(3, "first's metadata", caps=META | STREAMING)
    machine.add(11, "a codec", "bcm2835-codec", caps=M2M | STREAMING)
    machine.add(12, "one that cannot stream", caps=CAPTURE)

    found = find_v4l2_devices(machine.root, machine.ioctl)

    assert [(device.path, device.formats) for device in found] == [
        ("/dev/video2", ("MJPG", "YUYV")),
        ("/dev/video10", ("NV12",)),
    ]


def test_a_node_that_may_not_be_used_is_listed_with_what_to_do(
    machine: V4l2Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.add(0, "HD Webcam")

    def refuse(path: object, flags: int) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)

    [camera] = listed(machine).cameras

    assert camera.name == "HD Webcam"
    assert "sudo usermod -aG video $USER" in camera.note


def test_descriptors_are_given_back_also_when_a_node_does_not_answer(machine: V4l2Machine) -> None:
    machine.add(0, "odd")

    def refuse(fd: int, code: int, buffer: bytearray) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    [device] = find_v4l2_devices(machine.root, refuse)

    assert device.trouble == "another program uses it"
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_jetsons_sensors_are_called_csi_and_said_to_be_untried(machine: V4l2Machine) -> None:
    (machine.root / "etc").mkdir()
    (machine.root / "etc/nv_tegra_release").write_text("# R36 (release), REVISION: 4.3\n")
    machine.add(0, "vi-output, imx219 9-0010", "tegra-video", formats=("RG10",))
    machine.add(1, "vi-output, imx219 10-0010", "tegra-video", formats=("RG10",))
    machine.add(2, "HD Webcam")

    found = listed(machine)

    assert [camera.source for camera in found.cameras] == ["/dev/video2", "csi:0", "csi:1"]
    assert found.cameras[1].note == NOT_EXECUTED
    assert found.ways["csi"].is_there


def test_a_raspberry_pis_sensors_are_called_picamera(machine: V4l2Machine) -> None:
    machine.add(0, "unicam-image", "unicam", formats=("BG10",))
    info = [
        {"Num": 0, "Model": "imx708_wide", "Id": "/base/axi/pcie@120000/rp1/i2c@88000/imx708@1a"},
        {"Num": 1, "Model": "HD Webcam", "Id": "/base/axi/pcie@120000/rp1/usb@200000-1:1.0-046d:0825"},
    ]
    module = SimpleNamespace(Picamera2=SimpleNamespace(global_camera_info=lambda: info))

    found = listed(machine, picamera2=lambda: module)

    assert [(camera.source, camera.name) for camera in found.cameras] == [("picamera:0", "imx708_wide")]
    assert found.ways["picamera2"].is_there
    assert found.ways["picamera2"].note == NOT_EXECUTED


def test_a_raspberry_pis_sensor_without_picamera2_is_told_with_what_to_do(machine: V4l2Machine) -> None:
    machine.add(0, "unicam-image", "unicam")

    found = listed(machine)

    assert not found.cameras
    assert any("own connector: install picamera2" in advice for advice in found.advice)


def test_a_picamera2_that_cannot_list_is_told(machine: V4l2Machine) -> None:
    def fail() -> list[Any]:
        raise RuntimeError("no camera manager")

    module = SimpleNamespace(Picamera2=SimpleNamespace(global_camera_info=fail))

    way = listed(machine, picamera2=lambda: module).ways["picamera2"]

    assert not way.is_there
    assert "no camera manager" in way.detail


@pytest.mark.parametrize(("built", "is_there"), [("YES (1.22.0)", True), ("NO", False)])
def test_gstreamer_is_there_when_opencv_was_built_with_it(machine: V4l2Machine, built: str, is_there: bool) -> None:
    ways = listed(machine, opencv=lambda: opencv(built)).ways

    assert ways["gstreamer"].is_there is is_there
    assert ways["opencv"].detail == "4.12.0"


def test_where_nothing_is_it_says_what_to_try(machine: V4l2Machine) -> None:
    found = listed(machine, opencv=lambda: missing("opencv"))

    assert found.cameras == ()
    assert "install opencv" in found.advice
    assert any("synthetic" in advice and "rtsp://" in advice for advice in found.advice)
    json.dumps(found.to_dict())


def test_it_works_on_this_machine() -> None:
    found = list_cameras()

    assert set(found.ways) == {"opencv", "gstreamer", "picamera2", "csi"}
    assert found.cameras or any("synthetic" in advice for advice in found.advice)
