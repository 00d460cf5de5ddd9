"""The catalog of short names."""

from __future__ import annotations

import re

from edge_vl.catalog import CatalogEntry, catalog


def test_every_family_that_is_promised_is_there() -> None:
    names = set(catalog())
    for family, sizes in {
        "smolvlm": ("256m", "500m", "2.2b"),
        "smolvlm2": ("256m", "500m", "2.2b"),
        "lfm2-vl": ("450m", "1.6b"),
        "internvl3": ("1b", "2b"),
        "qwen2.5-vl": ("3b", "7b"),
        "qwen3-vl": ("2b", "4b"),
        "gemma-3": ("4b",),
        "minicpm-v": ("2.6", "4", "4.5"),
    }.items():
        assert {f"{family}-{size}" for size in sizes} <= names


def test_every_entry_can_be_a_folder_and_names_a_repository() -> None:
    for name, entry in catalog().items():
        assert name == entry.name
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name)
        assert entry.repos
        assert all(repo.count("/") == 1 for repo in entry.repos)
        assert entry.title


def test_no_repository_stands_for_two_models() -> None:
    repos = [repo for entry in catalog().values() for repo in entry.repos]
    assert len(repos) == len(set(repos))


def test_settings_are_looked_for_first_where_transformers_has_them() -> None:
    assert CatalogEntry("x", "X", repo="a/x", gguf="b/x").repos == ("a/x", "b/x")
    assert CatalogEntry("x", "X", gguf="b/x").repos == ("b/x",)
    assert CatalogEntry("x", "X", repo="a/x", gguf="a/x").repos == ("a/x",)
