"""Tests of reading gateway files."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest

from edge_vl.errors import ConfigError
from edge_vl.gateway.config import CameraConfig, GatewayConfig, HomeAssistantConfig, Limits, ModelConfig, WhenConfig
from edge_vl.gateway.gateway_file import default_node, read_gateway_file
from edge_vl.gateway.gateway_schema import KEYS
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.reply_rule import RESERVED_NAMES
from edge_vl.mqtt.topics import check_name
from edge_vl.sources.camera_settings import CameraSettings

SECRET = "hunter2 is it"

SMALL = """
[broker]
url = "mqtt://localhost"
"""

FULL = """
[broker]
url = "mqtts://broker.lan"
username = "pi"
password_file = "secrets/broker"
ca = "ca.pem"
cert = "me.pem"
key = "me.key"
client_id = "pi-door"
protocol = "3.1.1"
keepalive_s = 20
connect_timeout_s = 4
retry_first_s = 1
retry_max_s = 30

[node]
name = "pi-door"
prefix = "home/edge_vl"
group = "doors"
state_dir = "state"
folders = ["pictures", "/srv/pictures"]
reply_prefixes = ["robot/answers/"]
stats_every_s = 5

[model]
name = "./models/own"
vision_engine = "onnxruntime"
language_engine = "llama_cpp"
vision_dtype = "int8"
language_dtype = "q4_k_m"
kv = "text=int8,image=int4"
threads = 3
context_length = 2048
memory_budget_mib = 900
keep_mib = 32
mode = "serial"

[profile]
id = "own.toml"

[[camera]]
name = "door"
source = "rtsp://camera.lan/1"
username = "viewer"
password_env = "DOOR_PASSWORD"
question = "What is at the door?"
every_s = 2.5
on_motion = true
max_silence_s = 30
max_tokens = 64
deadline_s = 5
max_frame_age_s = 2
reuse = "perceptual"
share = 2
enabled = false
snapshot = true
snapshot_max_px = 320
rotate_deg = 90
region = [0, 0.25, 1, 0.75]
max_fps = 10
open_timeout_s = 4
read_timeout_s = 3
retry_first_s = 2
retry_max_s = 20

[[camera.when]]
name = "person"
question = "Is there a person?"
after = 3

[[camera.when]]
name = "parcel"
question = "Is there a parcel?"

[[camera]]
name = "yard"
source = "clips/yard.mp4"
max_fps = 0
every_s = 0

[limits]
max_active = 2
max_waiting = 10
max_per_client = 5
max_request_bytes = 65536
max_image_bytes = 1048576
max_images_bytes = 4194304
max_image_mpx = 12.5
image_wait_s = 20
max_conversations = 4
max_tokens = 256
default_deadline_s = 30
outbox_mib = 2
num_recent_ids = 100
shutdown_s = 1.5

[home_assistant]
enabled = true
discovery_prefix = "ha"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "secrets").mkdir()
    secret = tmp_path / "secrets" / "broker"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    for name in ("ca.pem", "me.pem", "me.key"):
        (tmp_path / name).write_text("")
    monkeypatch.setenv("DOOR_PASSWORD", "viewer's own")
    return tmp_path


def read(folder: Path, text: str, **options: Any) -> GatewayConfig:
    path = folder / "gateway.toml"
    path.write_text(text)
    return read_gateway_file(path, **options)


def refused(folder: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    error = caught.value
    assert error.path == str(folder / "gateway.toml")
    assert str(error).startswith(error.path)
    assert error.expected
    return error


def test_a_file_that_names_a_broker_is_enough(folder: Path) -> None:
    config = read(folder, SMALL)
    assert config == GatewayConfig(broker=BrokerSettings(host="localhost"), node=default_node())


def test_every_key_arrives_where_it_belongs(folder: Path) -> None:
    config = read(folder, FULL)
    broker = config.broker
    assert (broker.host, broker.port, broker.is_tls, broker.username, broker.password) == (
        *("broker.lan", 8883, True, "pi", SECRET),
    )
    assert (broker.ca, broker.cert, broker.key) == tuple(folder / name for name in ("ca.pem", "me.pem", "me.key"))
    assert (broker.client_id, broker.protocol, broker.keepalive_s) == ("pi-door", "3.1.1", 20)
    assert (broker.connect_timeout_s, broker.backoff.first_s, broker.backoff.cap_s) == (4, 1, 30)
    assert (config.node, config.prefix, config.group) == ("pi-door", "home/edge_vl", "doors")
    assert config.state_dir == folder / "state"
    assert config.folders == (folder / "pictures", Path("/srv/pictures"))
    assert (config.reply_prefixes, config.stats_every_s) == (("robot/answers",), 5)
    assert config.model == ModelConfig(
        name=str(folder / "models/own"),
        profile=str(folder / "own.toml"),
        vision_engine="onnxruntime",
        language_engine="llama_cpp",
        vision_dtype="int8",
        language_dtype="q4_k_m",
        kv="text=int8,image=int4",
        threads=3,
        context_length=2048,
        memory_budget_mib=900,
        keep_mib=32,
        mode="serial",
    )
    assert config.home_assistant == HomeAssistantConfig(True, "ha")
    assert config.limits == Limits(2, 10, 5, 65_536, 1_048_576, 4_194_304, 12.5, 20, 4, 256, 30, 2, 100, 1.5)
    door, yard = config.cameras
    assert (door.username, door.password) == ("viewer", "viewer's own")
    settings = door.settings
    assert (settings.view.rotate_deg, settings.view.region) == (90, (0, 0.25, 1, 0.75))
    assert (settings.max_fps, settings.open_timeout_s, settings.read_timeout_s) == (10, 4, 3)
    assert (settings.backoff.first_s, settings.backoff.cap_s) == (2, 20)
    assert dataclasses.replace(door, username=None, password=None, settings=CameraSettings()) == CameraConfig(
        name="door",
        source="rtsp://camera.lan/1",
        question="What is at the door?",
        every_s=2.5,
        on_motion=True,
        max_silence_s=30,
        when=(
            WhenConfig("person", "Is there a person?", 3),
            WhenConfig("parcel", "Is there a parcel?"),
        ),
        max_tokens=64,
        deadline_s=5,
        max_frame_age_s=2,
        reuse="perceptual",
        share=2,
        is_enabled=False,
        snapshot=True,
        snapshot_max_px=320,
    )
    assert (yard.source, yard.every_s, yard.settings.max_fps) == (str(folder / "clips/yard.mp4"), None, None)


def test_the_test_above_knows_every_key() -> None:
    shown = FULL.replace('id = "own.toml"', "profile.id").replace("[[camera.when]]", "")
    refused_on_purpose = {"broker.password", "broker.password_env", "camera[].password", "model.profile"}
    known_elsewhere = {"camera[].password_file", "profile.id"}
    for key in KEYS.keys() - refused_on_purpose - known_elsewhere:
        assert f"\n{key.rpartition('.')[2]} = " in shown, key


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        ("[brokre]\nurl = 'x'", "brokre", "did you mean 'broker'"),
        ("[node]\nnmae = 'x'", "node.nmae", "did you mean 'node.name'"),
        ("[[camera]]\nname = 'a'\nsource = '0'\nevery = 2", "camera[0].every", "did you mean 'camera[0].every_s'"),
        ("[[camera]]\nname = 'a'", "camera[0].source", "what opens the camera"),
        ("[[camera]]\nsource = '0'", "camera[0].name", "not nothing"),
        ("[[camera]]\nname = 'a b'\nsource = '0'", "camera[0].name", "letters, digits"),
        ("[[camera]]\nname = 'a\\n'\nsource = '0'", "camera[0].name", "letters, digits"),
        ("[[camera]]\nname='a'\nsource='0'\n[[camera]]\nname='a'\nsource='1'", "camera[1].name", "camera[0]"),
        ("[[camera]]\nname='a'\nsource='0'\nregion=[0, 0, 1]", "camera[0].region", "4 numbers"),
        ("[[camera]]\nname='a'\nsource='0'\nregion=[0.5, 0, 0.5, 1]", "camera[0].region", "left < right"),
        ("[[camera]]\nname='a'\nsource='0'\nrotate_deg=45", "camera[0].rotate_deg", "0, 90, 180 or 270"),
        ("[[camera]]\nname='a'\nsource='0'\nreuse='all'", "camera[0].reuse", "one of exact"),
        ("[[camera]]\nname='a'\nsource='0'\nquestion='x\\ny'", "camera[0].question", "one line"),
        ("[[camera]]\nname='a'\nsource='0'\n[[camera.when]]\nname='p'", "camera[0].when[0].question", "yes or no"),
        (
            "[[camera]]\nname='a'\nsource='0'\n[[camera.when]]\nname='p'\nquestion='q'\n[[camera.when]]\nname='p'\nquestion='r'",
            "camera[0].when[1].name",
            "camera[0].when[0]",
        ),
        ("[node]\nname = 'a/b'", "node.name", "letters, digits"),
        ("[node]\nname = 'group'", "node.name", "none of"),
        ("[node]\nprefix = 'a/b/c'", "node.prefix", "one or two names"),
        ("[node]\ngroup = '#'", "node.group", "letters, digits"),
        ("[node]\nreply_prefixes = ['a/#']", "node.reply_prefixes", "without wildcards"),
        ("[node]\nreply_prefixes = ['$SYS']", "node.reply_prefixes", "without wildcards"),
        ("[node]\nfolders = 'a'", "node.folders", "a list of paths"),
        ("[node]\nstats_every_s = 0", "node.stats_every_s", "from 1 to"),
        ("[model]\nprofile = 'auto'", "model.profile", "say it in [profile], as id"),
        ("[model]\nmode = 'fast'", "model.mode", "one of profile"),
        ("[model]\nkv = 'int3'", "model.kv", "int8"),
        ("[limits]\nmax_active = 0", "limits.max_active", "from 1 to"),
        ("[limits]\nmax_active = true", "limits.max_active", "not True"),
        ("[limits]\nmax_images_bytes = 2048", "limits.max_image_bytes", "at most limits.max_images_bytes"),
        ("[home_assistant]\ndiscovery_prefix = '+'", "home_assistant.discovery_prefix", "one or two names"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_key(folder: Path, change: str, key: str, words: str) -> None:
    error = refused(folder, SMALL + change.replace("'", '"'))
    assert error.key == key
    assert words in str(error)


@pytest.mark.parametrize(
    ("broker", "key", "words"),
    [
        ("", "broker.url", "mqtt://host:port"),
        ("url = 5", "broker.url", "mqtt://host:port"),
        ("url = 'http://x'", "broker.url", "http"),
        ("url = 'mqtt://x:99999'", "broker.url", "mqtt://"),
        ("url = 'mqtt://x/prefix'", "broker.url", "node.prefix"),
        ("url = 'mqtt://x'\nca = 'ca.pem'", "broker.ca", "mqtts://"),
        ("url = 'mqtts://x'\nca = 'none.pem'", "broker.ca", "that is there"),
        ("url = 'mqtts://x'\nkey = 'me.key'", "broker.cert", "belongs to"),
        ("url = 'mqtt://x'\nprotocol = '4'", "broker.protocol", "one of auto, 5, 3.1.1"),
        ("url = 'mqtt://x'\nkeepalive_s = 1", "broker.keepalive_s", "from 5 to 3600"),
        ("url = 'mqtt://x'\nretry_first_s = 5\nretry_max_s = 1", "broker.retry_first_s", "at most retry_max_s"),
        ("url = 'mqtt://a@x'\nusername = 'b'", "broker.username", "only one of both"),
        ("url = 'mqtt://x'\npassword_file = 'secrets/broker'", "broker.username", "whose password"),
    ],
)
def test_a_broker_that_cannot_be_used_is_refused_by_its_key(folder: Path, broker: str, key: str, words: str) -> None:
    error = refused(folder, f"[broker]\n{broker}\n")
    assert error.key == key
    assert words in str(error)


@pytest.mark.parametrize(
    "text",
    [
        f"[broker]\nurl = 'mqtt://pi:{SECRET[:7]}@x'",
        f"[broker]\nurl = 'mqtt://x'\npassword = '{SECRET}'",
        f"{SMALL}[[camera]]\nname = 'a'\nsource = 'rtsp://u:{SECRET[:7]}@x/1'",
        f"{SMALL}[[camera]]\nname = 'a'\nsource = '0'\npassword = '{SECRET}'",
        f"[broker]\nurl = ['{SECRET}']",
        f"{SMALL}[[camera]]\nname = 'a'\nsource = ['{SECRET}']",
        *(f"[broker]\nurl = 'mqtt://pi:{SECRET[:7]}{end}@x'" for end in "/?#@:%"),
        f"[broker]\nurl = 'mqtt://pi:{SECRET[:7]}'",
        *(
            f"{table}username = 'pi'\n{key} = {value}"
            for table in (SMALL, f"{SMALL}[[camera]]\nname = 'a'\nsource = 'rtsp://x'\n")
            for key in ("password_env", "password_file")
            for value in (f"'{SECRET[:7]}'", f"['{SECRET[:7]}']")
        ),
    ],
)
def test_a_password_in_the_file_is_refused_and_not_shown(folder: Path, text: str) -> None:
    error = refused(folder, text)
    assert SECRET[:7] not in f"{error} {error.got} {error.expected} {error!r}"


def test_passwords_are_not_shown_by_repr(folder: Path) -> None:
    shown = repr(read(folder, FULL))
    assert SECRET not in shown
    assert "viewer's own" not in shown


def test_a_password_comes_from_a_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = SMALL + "username = 'pi'\npassword_env = 'BROKER_PASSWORD'\n"
    monkeypatch.delenv("BROKER_PASSWORD", raising=False)
    assert "variable that is not set" in str(refused(folder, text))
    monkeypatch.setenv("BROKER_PASSWORD", SECRET)
    assert read(folder, text).broker.password == SECRET
    assert "only one of password_env and password_file" in str(refused(folder, text + "password_file = 'ca.pem'"))


def test_a_variable_with_a_name_of_our_own_is_refused_with_another_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refused(folder, SMALL + "username = 'pi'\npassword_env = 'EDGE_VL_BROKER_PASSWORD'\n")
    assert error.key == "broker.password_env"
    assert "call it BROKER_PASSWORD" in str(error)
    monkeypatch.setenv("EDGE_VL_MQTT_PASSWORD", SECRET)
    assert read(folder, SMALL + "username = 'pi'\npassword_env = 'EDGE_VL_MQTT_PASSWORD'\n").broker.password == SECRET


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines\n", b"\xff\xfe", b"x" * 5000, b"nul\x00"])
def test_a_password_file_that_holds_something_else_is_refused(folder: Path, content: bytes) -> None:
    (folder / "secrets" / "broker").write_bytes(content)
    error = refused(folder, SMALL + "username = 'pi'\npassword_file = 'secrets/broker'\n")
    assert error.key == "broker.password_file"


@pytest.mark.parametrize("content", ["pass word", "pass word\n", "pass word\r\n"])
def test_the_end_of_the_line_is_no_part_of_the_password(folder: Path, content: str) -> None:
    (folder / "secrets" / "broker").write_bytes(content.encode())
    config = read(folder, SMALL + "username = 'pi'\npassword_file = 'secrets/broker'\n")
    assert config.broker.password == "pass word"


def test_a_password_that_everybody_can_read_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = SMALL + "username = 'pi'\npassword_file = 'secrets/broker'\n"
    read(folder, text)
    assert not caplog.records
    (folder / "secrets" / "broker").chmod(0o644)
    read(folder, text)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "chmod o=" in caplog.text
    notes: list[str] = []
    read(folder, text, on_note=notes.append)
    assert len(notes) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_password_file_that_may_not_be_read_is_refused(folder: Path) -> None:
    (folder / "secrets" / "broker").chmod(0)
    error = refused(folder, SMALL + "username = 'pi'\npassword_file = 'secrets/broker'\n")
    assert "cannot be read" in str(error)


@pytest.mark.parametrize(
    "source",
    ["0", "rtsp://camera/1", "http://camera/mjpeg", "synthetic", "synthetic:640x480@30", "gst:videotestsrc", "csi:0"],
)
def test_sources_that_are_no_paths_stay_as_they_are(folder: Path, source: str) -> None:
    assert read(folder, f"{SMALL}[[camera]]\nname = 'a'\nsource = '{source}'").cameras[0].source == source


@pytest.mark.parametrize("source", ["clip.mp4", "clips/a.mp4", "synthetic-clip.mp4", "/dev/video0", "2026-05.mp4"])
def test_sources_that_are_paths_begin_at_the_files_folder(folder: Path, source: str) -> None:
    assert read(folder, f"{SMALL}[[camera]]\nname = 'a'\nsource = '{source}'").cameras[0].source == str(folder / source)


def test_a_token_in_a_source_is_told(folder: Path) -> None:
    notes: list[str] = []
    text = f"{SMALL}[[camera]]\nname = 'a'\nsource = 'http://camera/mjpeg?token=abc'"
    assert read(folder, text, on_note=notes.append).cameras[0].source.endswith("token=abc")
    assert len(notes) == 1
    assert "abc" not in notes[0]


@pytest.mark.parametrize(
    ("host", "node"),
    [
        ("pi-door", "pi-door"),
        ("pi door.local", "pi-door"),
        ("müller", "m-ller"),
        ("", "node"),
        ("group", "node-group"),
        ("x" * 80, "x" * 64),
        ("...", "node"),
    ],
)
def test_the_name_of_any_host_becomes_one_of_a_node(host: str, node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert default_node() == node
    assert check_name(node, "node") not in RESERVED_NAMES


@pytest.mark.parametrize("text", ["[broker", "\x00", "a = 1"])
def test_a_file_that_is_no_gateway_file_is_refused(folder: Path, text: str) -> None:
    refused(folder, text)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file or directory$"):
        read_gateway_file(tmp_path / "none.toml")


def test_the_document_has_every_key_and_its_default() -> None:
    document = (Path(__file__).parents[2] / "docs" / "gateway_file.md").read_text()
    rows: dict[str, str] = {}
    for section in document.split("\n## ")[1:]:
        table = section.partition("`]")[0].partition("\n")[0]
        names = re.findall(r"\[+(\w+)\]+", table)
        for key, default in re.findall(r"^\| `([\w.]+)` \|.*\| (.*) \|$", section, re.MULTILINE):
            name = f"{names[0]}.{key}" if key.partition(".")[0] not in ("model", "profile") else key
            rows[name.replace("camera.when.", "camera[].when[].").replace("camera.", "camera[].")] = default.strip("`")
    said = {key for key, kind in KEYS.items() if not kind.expected.startswith("left out")}
    assert set(rows) == said

    defaults: dict[str, object] = {
        **{f"broker.{field.name}": field.default for field in dataclasses.fields(BrokerSettings)},
        **{f"node.{field.name}": field.default for field in dataclasses.fields(GatewayConfig)},
        **{f"model.{field.name}": field.default for field in dataclasses.fields(ModelConfig)},
        **{f"camera[].{field.name}": field.default for field in dataclasses.fields(CameraConfig)},
        **{f"camera[].{field.name}": field.default for field in dataclasses.fields(CameraSettings)},
        **{f"camera[].when[].{field.name}": field.default for field in dataclasses.fields(WhenConfig)},
        **{f"limits.{field.name}": field.default for field in dataclasses.fields(Limits)},
        "home_assistant.discovery_prefix": HomeAssistantConfig().discovery_prefix,
    }
    compared = 0
    for key, default in rows.items():
        value = defaults.get(key)
        if isinstance(value, bool):
            assert default == str(value).lower(), key
        elif isinstance(value, (int, float)):
            assert float(default) == value, key
            compared += 1
        elif isinstance(value, str) and value:
            assert default == value, key
    assert compared > 20


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[2] / "examples").glob("*.toml")), ids=lambda path: path.name
)
def test_every_example_is_a_gateway_file(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = file.read_text()
    for variable in re.findall(r'password_env = "(\w+)"', text):
        monkeypatch.setenv(variable, "secret")
    (tmp_path / file.name).write_text(text)
    assert read_gateway_file(tmp_path / file.name).cameras


def test_the_example_shows_every_key() -> None:
    table, shown = "", set()
    for line in (Path(__file__).parents[2] / "examples" / "gateway.toml").read_text().splitlines():
        if header := re.match(r"\[+([\w.]+)\]+", line):
            table = header[1].replace("camera", "camera[]").replace("when", "when[]")
        elif key := re.match(r"(?:# )?(\w+) = ", line):
            shown.add(f"{table}.{key[1]}")
    assert shown == {key for key, kind in KEYS.items() if not kind.expected.startswith("left out")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[broker]\nurl = 'mqtt://pi:hunter2@x'",
            "broker.url: there is a password in it; leave it out there, and name a variable that holds it with "
            "broker.password_env, or a file with it with broker.password_file",
        ),
        (
            f"{SMALL}[camera]\nname = 'a'\nsource = '0'",
            "camera should be an array of tables: write [[camera]] for each, not one table, [camera]",
        ),
        (
            f"{SMALL}[camera]\nname = 'a'\nsource = '0'\n[camera]\nname = 'b'\nsource = '1'",
            "is not valid TOML: Cannot declare ('camera',) twice; write [[camera]] for each",
        ),
        (f"{SMALL}[broker]", "is not valid TOML: Cannot declare ('broker',) twice"),
        (
            f"{SMALL}[[camera]]\nname = 'a'\nsource = true",
            "camera[0].source should be what opens the camera, such as rtsp://host/path, or the number of a webcam, "
            "not true or false, which is not shown",
        ),
        (
            f"{SMALL}[[camera]]\nname = 'a'\nsource = -1",
            "camera[0].source should be what opens the camera, such as rtsp://host/path, or the number of a webcam, "
            "not a number, which is not shown",
        ),
        (
            f"{SMALL}[[camera]]\nname = 'a'\nsource = 'syntetic'",
            "camera[0].source: there is no file 'syntetic'; did you mean synthetic?",
        ),
    ],
)
def test_the_words_say_what_to_do(folder: Path, text: str, message: str) -> None:
    said = str(refused(folder, text)).removeprefix(str(folder / "gateway.toml")).lstrip(": ")
    assert re.sub(r" \(at [^)]*\)", "", said) == message


def test_a_key_that_is_refused_is_not_named_as_one_that_helps(folder: Path) -> None:
    error = refused(folder, f"{SMALL}passwd = 'x'\n")
    assert "password_env" in error.expected
    assert "password," not in error.expected
    assert "did you mean 'broker.password'" not in str(error)


@pytest.mark.parametrize("number", [0, 2])
def test_a_webcam_may_be_given_by_its_number(folder: Path, number: int) -> None:
    config = read(folder, f"{SMALL}[[camera]]\nname = 'a'\nsource = {number}")
    assert config.cameras[0].source == str(number)


def test_a_file_that_is_there_is_no_misspelt_word(folder: Path) -> None:
    (folder / "syntetic").write_bytes(b"")
    config = read(folder, f"{SMALL}[[camera]]\nname = 'a'\nsource = 'syntetic'")
    assert config.cameras[0].source == str(folder / "syntetic")


def test_a_user_without_a_password_is_told_where_one_is_given(folder: Path) -> None:
    notes: list[str] = []
    read(folder, f"{SMALL}username = 'pi'", on_note=notes.append)
    (note,) = notes
    assert "no password is given" in note
    assert "password_env" in note
