"""Two small models, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_vl.made_models.folder import make_model
from tests.made_models.small_shapes import SMALL_INTERNVL, SMALL_SMOLVLM


@pytest.fixture(scope="session")
def smolvlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of SmolVLM's kind, in all dtypes."""
    folder = tmp_path_factory.mktemp("made") / "smolvlm"
    make_model(SMALL_SMOLVLM, folder)
    return folder


@pytest.fixture(scope="session")
def internvl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of InternVL3's kind, in all dtypes."""
    folder = tmp_path_factory.mktemp("made") / "internvl"
    make_model(SMALL_INTERNVL, folder)
    return folder
