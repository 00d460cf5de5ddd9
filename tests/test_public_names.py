"""What `import edge_vl` gives, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

import edge_vl


def test_every_public_name_can_be_imported_and_is_listed() -> None:
    for name in edge_vl.__all__:
        assert getattr(edge_vl, name) is not None
        assert name in dir(edge_vl)
    homes = {name for names in edge_vl._HOMES.values() for name in names}
    assert homes | {"__version__"} == set(edge_vl.__all__)
    assert [name for name in homes if getattr(edge_vl, name).__module__ == "edge_vl"] == []


def test_modules_are_attributes_as_after_any_import() -> None:
    code = "import edge_vl; print(edge_vl.errors.SourceError.__name__, edge_vl.runtime.Runtime is edge_vl.Runtime)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "SourceError True\n"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Runtme'"):
        edge_vl.Runtme  # noqa: B018
    with pytest.raises(ImportError):
        from edge_vl import no_such_thing  # noqa: F401


@pytest.mark.parametrize("module", ["edge_vl", "edge_vl.cli"])
def test_signals_can_be_followed_before_anything_large_is_loaded(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'numpy', 'PIL', 'typer', 'asyncio'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "\n"
