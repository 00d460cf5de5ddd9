"""Fixtures that several test modules use."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_vl import Runtime
from edge_vl.testing import FakeEngine
from tests.hub_double import HubDouble, running_double
from tests.mosquitto import Mosquitto, has_mosquitto, running_mosquitto

TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the one test that takes minutes and little of the processor, so that the others run beside it."""
    items.sort(key=lambda item: item.path.name != "test_soak.py")


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """Make a model folder of the Idefics3 family without weights: 2x2 tiles of 16 pixels, 4 tokens each."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    files: dict[str, Any] = {
        "config.json": {
            "model_type": "idefics3",
            "scale_factor": 2,
            "vision_config": {"image_size": 16, "patch_size": 4},
            "text_config": {"max_position_embeddings": 4096, "vocab_size": 320},
        },
        "preprocessor_config.json": {
            "do_image_splitting": True,
            "do_resize": True,
            "do_rescale": True,
            "do_normalize": True,
            "size": {"longest_edge": 32},
            "max_image_size": {"longest_edge": 16},
            "rescale_factor": 1 / 255,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "resample": 1,
        },
        "tokenizer.json": {},
        "processor_config.json": {"image_seq_len": 4},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


OpenFake = Callable[..., tuple[Runtime, FakeEngine]]


def flush(runtime: Runtime) -> None:
    """Wait until the language lane has done everything that it was given so far."""
    done = threading.Event()
    runtime.on_language_lane(done.set)
    assert done.wait(30)


@pytest.fixture(autouse=True)
def costs_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Keep learned costs of tests out of the cache folder of whoever runs them."""
    folder = tmp_path / "costs"
    monkeypatch.setattr("edge_vl.cost_store.default_folder", lambda: folder)
    return folder


@pytest.fixture
def open_fake(model_folder: Path) -> Iterator[OpenFake]:
    """Open runtimes on fake engines; closes them, and checks that the engines were given everything back.

    Calls and faults of the engine count from when the runtime is open and has prefilled what every prompt begins with.
    """
    opened: list[tuple[Runtime, FakeEngine]] = []

    def open_one(**knobs: Any) -> tuple[Runtime, FakeEngine]:
        options = {
            name: knobs.pop(name)
            for name in ("max_waiting", "context_length", "mode", "picture_limits")
            if name in knobs
        }
        limits, faults = knobs.pop("limits", None), knobs.pop("faults", ())
        engine = FakeEngine(faults=[fault for fault in faults if fault.stage.startswith("load")], **knobs)
        with pytest.MonkeyPatch.context() as patch:
            if limits is not None:
                patch.setattr("edge_vl.runtime.SchedulerLimits.keeping", lambda keep_bytes: limits)
            runtime = Runtime.open(model_folder, vision_engine=engine, language_engine=engine, **options)
        opened.append((runtime, engine))
        flush(runtime)
        engine.begin_anew(faults)
        return runtime, engine

    yield open_one
    for runtime, engine in opened:
        runtime.close()
        assert engine.num_open == 0


@pytest.fixture
def hub_double(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubDouble]:
    """Run a double of the Hub; its cache and the folder for pulled models are under `tmp_path`."""
    import huggingface_hub
    from huggingface_hub.utils import close_session

    with running_double() as double:
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", double.endpoint)
        monkeypatch.setenv("EDGE_VL_MODELS_DIR", str(tmp_path / "models"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        yield double
        close_session()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt, also where the tests run in the background of a shell that has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """Run a broker of the test's own; skips where mosquitto is not installed."""
    if not has_mosquitto():
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    folder = tmp_path / "mosquitto"
    folder.mkdir()
    with running_mosquitto(folder) as broker:
        yield broker
