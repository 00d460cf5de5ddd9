"""Tiny models that several test modules of engines use."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_vl.model_spec import ModelSpec, read_model_spec
from edge_vl.models import find_model
from tests.engines.tiny_gguf import write_pair
from tests.engines.tiny_models import EXPORTS, tiny_spec, write_tiny_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModelSpec]:
    """Return tiny models by kind of export, written once."""
    root = tmp_path_factory.mktemp("tiny_models")

    def get(kind: str) -> ModelSpec:
        folder = root / kind
        return tiny_spec(folder) if folder.exists() else write_tiny_model(folder, EXPORTS[kind])

    return get


@pytest.fixture
def copy_model(models: Callable[[str], ModelSpec], tmp_path: Path) -> Callable[[str], ModelSpec]:
    """Return a copy of a tiny model that a test may spoil."""

    def copy(kind: str) -> ModelSpec:
        shutil.copytree(models(kind).path, tmp_path / kind)
        return tiny_spec(tmp_path / kind)

    return copy


@pytest.fixture
def pair(tmp_path: Path) -> ModelSpec:
    """Return a tiny pair that a test may spoil."""
    return write_pair(tmp_path / "pair", "gemma3")


@pytest.fixture
def copy_bundled(tmp_path: Path) -> ModelSpec:
    """Return a copy of the bundled model that a test may spoil."""
    shutil.copytree(find_model("bundled").path, tmp_path / "bundled")
    return read_model_spec(tmp_path / "bundled")
