"""The Hub's files over HTTP, and everything that goes wrong on the way."""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import file_download
from huggingface_hub.utils import _http

from edge_vl.errors import ModelError, RequestError
from edge_vl.hub import Hub
from edge_vl.hub_repo import HubFile, HubRepo
from tests.hub_double import Fault, HubDouble, RepoDouble

REPO = "edge/noise"
NOISE = np.random.default_rng(3).integers(0, 256, 700_000, np.uint8).tobytes()
SMALL = b'{"model_type": "noise"}'


@pytest.fixture
def double(hub_double: HubDouble, monkeypatch: pytest.MonkeyPatch) -> HubDouble:
    """Hold one large and one small file; the library does not pause between its tries, and its chunks are small."""
    hub_double.repos[REPO] = RepoDouble({"noise.gguf": NOISE, "config.json": SMALL})
    for module in (file_download, _http):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda seconds: None, time=time.time))
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 50_000)
    return hub_double


@pytest.fixture
def hub(double: HubDouble, tmp_path: Path) -> Hub:
    return Hub(double.endpoint, tmp_path / "cache")


@pytest.fixture
def repo(hub: Hub) -> HubRepo:
    return hub.repo(REPO)


@pytest.fixture
def noise(repo: HubRepo) -> HubFile:
    return next(file for file in repo.files if file.path == "noise.gguf")


@pytest.fixture
def small(repo: HubRepo) -> HubFile:
    return next(file for file in repo.files if file.path == "config.json")


def part_of(hub: Hub, repo: HubRepo, file: HubFile) -> Path:
    return hub.folder(repo) / "blobs" / f"{file.sha256}.edge_vl.incomplete"


def test_a_repository_says_what_it_holds(double: HubDouble, repo: HubRepo) -> None:
    assert (repo.commit, repo.licence, repo.is_gated, repo.revision) == (
        double.repos[REPO].commit,
        "apache-2.0",
        False,
        "main",
    )
    sha256 = hashlib.sha256(NOISE).hexdigest()
    assert {(file.path, file.nbytes, file.sha256) for file in repo.files} == {
        ("noise.gguf", len(NOISE), sha256),
        ("config.json", len(SMALL), ""),
    }


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ({"license": "other", "license_name": "lfm1.0"}, "lfm1.0"),
        ({"license": ["mit", "cc-by-4.0"]}, "mit, cc-by-4.0"),
        ({"license": "other"}, "other"),
        ({}, ""),
    ],
)
def test_a_licence_is_what_the_model_card_says(
    double: HubDouble, hub: Hub, card: dict[str, object], licence: str
) -> None:
    double.repos[REPO].card = card
    assert hub.repo(REPO).licence == licence


def test_a_revision_may_be_a_commit_and_an_unknown_one_is_told(double: HubDouble, hub: Hub) -> None:
    commit = double.repos[REPO].commit
    assert hub.repo(REPO, commit).commit == commit
    with pytest.raises(ModelError, match=r"edge/noise \(v9\) has no such revision"):
        hub.repo(REPO, "v9")


@pytest.mark.parametrize("path", ["../up.gguf", "a/../../b", "C:\\x.gguf", "a\\b", "/x"])
def test_a_path_that_leaves_the_repository_is_left_out(double: HubDouble, hub: Hub, path: str) -> None:
    double.repos[REPO].files[path] = b"x"
    assert {file.path for file in hub.repo(REPO).files} == {"noise.gguf", "config.json"}


def test_both_kinds_of_files_arrive_whole(hub: Hub, repo: HubRepo, noise: HubFile, small: HubFile) -> None:
    assert hub.missing_bytes(repo, noise) == len(NOISE)
    assert hub.fetch(repo, noise).read_bytes() == NOISE
    assert hub.fetch(repo, small).read_bytes() == SMALL
    assert hub.missing_bytes(repo, noise) == hub.missing_bytes(repo, small) == 0


def test_what_arrived_is_where_the_library_itself_finds_it(
    hub: Hub, repo: HubRepo, noise: HubFile, double: HubDouble
) -> None:
    path = hub.fetch(repo, noise)
    double.requests.clear()
    found = huggingface_hub.hf_hub_download(
        REPO, "noise.gguf", revision=repo.commit, cache_dir=hub.cache, endpoint=double.endpoint
    )
    assert Path(found) == path
    assert double.requests == []


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_connection_that_ends_too_early_is_gone_on_with(
    double: HubDouble, hub: Hub, repo: HubRepo, noise: HubFile, is_reset: bool
) -> None:
    double.faults["noise.gguf"] = [Fault(cut_after=200_000, is_reset=is_reset), Fault(cut_after=100_000)]
    assert hub.fetch(repo, noise).read_bytes() == NOISE
    ranges = [request.range for request in double.bodies_of("|noise.gguf")]
    assert ranges[0] == ""
    begins = [int(range_.removeprefix("bytes=").rstrip("-")) for range_ in ranges[1:]]
    assert begins == sorted(set(begins))
    assert begins[0] > 0


def test_another_process_goes_on_where_one_was_interrupted(
    double: HubDouble, hub: Hub, repo: HubRepo, noise: HubFile, tmp_path: Path
) -> None:
    class Interrupt(BaseException):
        pass

    def interrupt(num_bytes: int) -> None:
        if num_bytes > 300_000:
            raise Interrupt

    with pytest.raises(Interrupt):
        hub.fetch(repo, noise, interrupt)
    there = part_of(hub, repo, noise).stat().st_size
    assert 0 < there < len(NOISE)
    other = Hub(double.endpoint, tmp_path / "cache")
    assert other.missing_bytes(repo, noise) == len(NOISE) - there
    double.requests.clear()
    assert other.fetch(repo, noise).read_bytes() == NOISE
    assert [request.range for request in double.bodies_of("|noise.gguf")] == [f"bytes={there}-"]
    assert not part_of(hub, repo, noise).exists()


def test_a_server_that_sends_all_instead_of_the_rest_is_understood(
    double: HubDouble, hub: Hub, repo: HubRepo, noise: HubFile
) -> None:
    double.faults["noise.gguf"] = [Fault(cut_after=200_000), Fault(ignores_range=True)]
    assert hub.fetch(repo, noise).read_bytes() == NOISE


def test_a_beginning_that_is_too_long_is_dropped(hub: Hub, repo: HubRepo, noise: HubFile) -> None:
    part = part_of(hub, repo, noise)
    part.parent.mkdir(parents=True)
    part.write_bytes(NOISE + b"more")
    assert hub.fetch(repo, noise).read_bytes() == NOISE


def test_a_beginning_of_other_bytes_is_found_out_and_dropped(
    hub: Hub, repo: HubRepo, noise: HubFile, double: HubDouble
) -> None:
    part = part_of(hub, repo, noise)
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(1000))
    with pytest.raises(ModelError, match="arrived damaged"):
        hub.fetch(repo, noise)
    assert not part.exists()
    assert hub.fetch(repo, noise).read_bytes() == NOISE


@pytest.mark.parametrize("name", ["noise.gguf", "config.json"])
def test_wrong_bytes_are_refused_and_not_kept(double: HubDouble, hub: Hub, repo: HubRepo, name: str) -> None:
    file = next(file for file in repo.files if file.path == name)
    double.faults[name] = [Fault(is_wrong=True)]
    with pytest.raises(ModelError, match=rf"{REPO}/{name} arrived damaged.*deleted: pull again"):
        hub.fetch(repo, file)
    left = [path for path in (hub.folder(repo)).rglob("*") if path.is_file() and "refs" not in path.parts]
    assert left == []
    assert hub.fetch(repo, file).read_bytes() == double.repos[REPO].files[name]


def test_a_file_that_was_damaged_in_the_cache_is_had_anew(hub: Hub, repo: HubRepo, noise: HubFile) -> None:
    path = hub.fetch(repo, noise)
    path.resolve().write_bytes(NOISE[:-1] + b"?")
    assert hub.fetch(repo, noise).read_bytes() == NOISE


def test_too_many_requests_are_tried_again(double: HubDouble, hub: Hub, repo: HubRepo, noise: HubFile) -> None:
    double.faults["noise.gguf"] = [Fault(status=429), Fault(status=429)]
    assert hub.fetch(repo, noise).read_bytes() == NOISE
    assert len(double.bodies_of("|noise.gguf")) == 3


def test_a_slow_server_is_waited_for(double: HubDouble, hub: Hub, repo: HubRepo, noise: HubFile) -> None:
    double.faults["noise.gguf"] = [Fault(pause_s=0.02)]
    told: list[int] = []
    assert hub.fetch(repo, noise, told.append).read_bytes() == NOISE
    assert told == sorted(told)
    assert told[-1] == len(NOISE)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "noise.gguf (does not exist|cannot be downloaded: the server answers with status 404)"),
        (403, "may not be read with the token in use"),
        (500, "status 500; pull again later"),
        (503, "status 503; pull again later"),
    ],
)
def test_an_answer_that_is_none_is_told(
    double: HubDouble, hub: Hub, repo: HubRepo, noise: HubFile, status: int, message: str
) -> None:
    double.faults["noise.gguf"] = [Fault(status=status)] * 9
    with pytest.raises(ModelError, match=message):
        hub.fetch(repo, noise)


def test_too_many_requests_for_the_list_are_told(double: HubDouble, hub: Hub) -> None:
    double.api_faults = [Fault(status=429)]
    with pytest.raises(ModelError, match="too many requests; wait a few minutes"):
        hub.repo(REPO)


def test_a_full_disk_is_told_and_what_arrived_is_kept(
    hub: Hub, repo: HubRepo, noise: HubFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, limit[1]))
        with pytest.raises(ModelError, match="cannot be stored: File too large; make room"):
            hub.fetch(repo, noise)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert part_of(hub, repo, noise).stat().st_size > 0
    assert hub.fetch(repo, noise).read_bytes() == NOISE


def test_no_connection_is_told(double: HubDouble, hub: Hub, repo: HubRepo, noise: HubFile, small: HubFile) -> None:
    double.stop()
    asks: list[Callable[[], object]] = [
        lambda: hub.repo(REPO),
        lambda: hub.fetch(repo, noise),
        lambda: hub.fetch(repo, small),
    ]
    for ask in asks:
        with pytest.raises(ModelError, match=r"no connection \(.*check the network and HF_ENDPOINT"):
            ask()


def test_a_server_without_a_certificate_is_told(double: HubDouble, tmp_path: Path) -> None:
    hub = Hub(double.endpoint.replace("http://", "https://"), tmp_path / "cache")
    with pytest.raises(ModelError, match="no secure connection"):
        hub.repo(REPO)


def test_offline_mode_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set; unset it"):
        hub.repo(REPO)


def test_a_cache_that_is_no_folder_is_told(hub: Hub, repo: HubRepo, noise: HubFile) -> None:
    shutil.rmtree(hub.cache, ignore_errors=True)
    hub.cache.write_text("a file")
    with pytest.raises(ModelError, match="cannot be stored"):
        hub.fetch(repo, noise)


@pytest.mark.parametrize("name", ["", "one", "a/b/c", "../x", "a b/c", "-/-"])
def test_what_is_no_repositorys_name_is_refused(hub: Hub, name: str) -> None:
    with pytest.raises(RequestError, match="not the name of a repository"):
        hub.repo(name)


def test_an_endpoint_that_is_no_address_is_refused() -> None:
    with pytest.raises(RequestError, match="HF_ENDPOINT"):
        Hub("hub.example")


def test_a_missing_library_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match="pip install huggingface_hub"):
        Hub()
