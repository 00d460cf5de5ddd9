"""What to pull: a pure choice from what repositories hold and what a device wants."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edge_vl.errors import ModelError
from edge_vl.hub_repo import HubFile, HubRepo
from edge_vl.wanted_files import ONNX_DTYPES, WantedFiles

__all__ = ["PlannedFile", "PullPlan", "gguf_dtype", "plan_files"]

_SETTINGS = ("config.json", "tokenizer.json", "preprocessor_config.json")
"""Without one of these a model's configuration is of no use, and GGUF files carry their own."""

_MORE_SETTINGS = (
    "generation_config.json",
    "processor_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
)
_PAPERS = re.compile(r"(licen[cs]e|notice)[^/]*", re.IGNORECASE)
_EXTERNAL_DATA = re.compile(r"[._]data(_\d+)?")
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
_DTYPE = re.compile(r"(?:^|[-._])((?:iq|tq|q)\d(?:_[a-z0-9]+)*|fp16|fp32|bf16|f16|f32|mxfp4)$", re.IGNORECASE)
_NO_TEXT_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "lora", "ggml-vocab")


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """One file to pull.

    Attributes:
        repo: where it is.
        file: which.
        path: where it goes in the model's folder, with forward slashes.
        role: `settings`, `vision`, `language` or `paper` (a licence's text).
        dtype: precision by its name; empty for other files and where the name does not say.
    """

    repo: HubRepo
    file: HubFile
    path: str
    role: str
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class PullPlan:
    """What is going to be pulled.

    Attributes:
        name: short name of the model.
        title: for people.
        files: all of them, settings first.
        notes: what may surprise.
    """

    name: str
    title: str
    files: tuple[PlannedFile, ...]
    notes: tuple[str, ...] = ()

    @property
    def repos(self) -> tuple[HubRepo, ...]:
        """The repositories that something is taken from."""
        return tuple(dict.fromkeys(file.repo for file in self.files))

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.file.nbytes for file in self.files)

    @property
    def pairs(self) -> tuple[tuple[PlannedFile, PlannedFile], ...]:
        """Text models and the vision encoders that they must fit, as GGUF files; of a split file the first part."""
        ggufs = [file for file in self.files if file.path.endswith(".gguf") and _part_of(file.file)[1] <= 1]
        texts = [file for file in ggufs if file.role == "language"]
        return tuple((text, file) for file in ggufs if file.role == "vision" for text in texts)


def plan_files(name: str, title: str, repos: Sequence[HubRepo], wanted: WantedFiles) -> PullPlan:
    """Choose the files of a model.

    Args:
        name: short name.
        title: for people.
        repos: where to look, the one whose settings count first.
        wanted: what the device wants.

    Raises:
        ModelError: no repository has a language model in a wanted form and precision; it says what there is.
    """
    language = next(filter(None, (_language(repos, form, wanted) for form in wanted.language_forms)), None)
    vision = next(filter(None, (_vision(repos, form, wanted) for form in wanted.vision_forms)), None)
    where = " and ".join(repo.repo_id for repo in repos)
    if language is None or (vision is None and any(_all_vision(repos))):
        lane = "language model" if language is None else "vision encoder"
        there = sorted({*_what_there_is(repos, lane)})
        raise ModelError(
            f"{where} has no {lane} of the wanted form and precision; "
            + (f"there are: {', '.join(there)}" if there else "there are neither ONNX nor GGUF files of one"),
            file=where,
        )
    notes = [] if vision else [f"{where} has no vision encoder: the model will read text only"]
    settings = _settings(repos)
    weights = (*(vision or ()), *language)
    if not settings:
        if any(file.path.startswith("onnx/") for file in weights):
            raise ModelError(
                f"{where} has ONNX files, but not all of {', '.join(_SETTINGS)} that they need", file=where
            )
        settings = tuple(_plan(repo, file, file.name, "settings") for repo, file in _templates(repos))
    papers = {
        paper.path: paper
        for repo in dict.fromkeys(file.repo for file in (*settings, *weights))
        for paper in (_plan(repo, file, file.name, "paper") for file in repo.files if _PAPERS.fullmatch(file.path))
    }
    return PullPlan(name, title, (*settings, *papers.values(), *weights), tuple(notes))


def gguf_dtype(name: str) -> str:
    """Return the precision that the name of a GGUF file ends with, as in `Model-Q4_K_M.gguf`; empty if it does not."""
    match = _DTYPE.search(_PART.sub("", name.removesuffix(".gguf")))
    return match[1].lower().replace("fp16", "f16").replace("fp32", "f32") if match else ""


def _language(repos: Sequence[HubRepo], form: str, wanted: WantedFiles) -> tuple[PlannedFile, ...] | None:
    if form == "gguf":
        return _gguf(repos, "language", wanted.gguf_language_dtypes)
    for repo in repos:
        for dtype in wanted.onnx_language_dtypes:
            decoder = _graph(repo, "decoder_model_merged", dtype)
            # The embedding table need not be of the decoder's precision: it is looked up, not computed with.
            embeds = (_graph(repo, "embed_tokens", other) for other in dict.fromkeys((dtype, *ONNX_DTYPES)))
            embed_tokens = next(filter(None, embeds), None)
            if decoder and embed_tokens:
                return tuple(
                    _plan(repo, file, f"onnx/{file.name}", "language", dtype) for file in (*embed_tokens, *decoder)
                )
    return None


def _vision(repos: Sequence[HubRepo], form: str, wanted: WantedFiles) -> tuple[PlannedFile, ...] | None:
    if form == "gguf":
        return _gguf(repos, "vision", wanted.gguf_vision_dtypes)
    for repo in repos:
        for dtype in wanted.onnx_vision_dtypes:
            if graph := _graph(repo, "vision_encoder", dtype):
                return tuple(_plan(repo, file, f"onnx/{file.name}", "vision", dtype) for file in graph)
    return None


def _graph(repo: HubRepo, stem: str, dtype: str) -> tuple[HubFile, ...]:
    """Return a graph and the files with its weights; nothing if it is not there."""
    name = f"{stem}{ONNX_DTYPES[dtype]}.onnx"
    for path in (f"onnx/{name}", name):
        graph = next((file for file in repo.files if file.path == path), None)
        if graph:
            data = (file for file in repo.files if file.path.startswith(path) and file.path != path)
            return (graph, *(file for file in data if _EXTERNAL_DATA.fullmatch(file.path.removeprefix(path))))
    return ()


def _gguf(repos: Sequence[HubRepo], role: str, dtypes: Sequence[str]) -> tuple[PlannedFile, ...] | None:
    """Return the file, or all parts of it, of the best precision."""
    for dtype in dtypes:
        for repo in repos:
            for file in repo.files:
                if _gguf_role(file) == role and gguf_dtype(file.name) == dtype and _part_of(file)[1] <= 1:
                    return tuple(_plan(repo, part, f"gguf/{part.name}", role, dtype) for part in _parts(repo, file))
    return None


def _gguf_role(file: HubFile) -> str:
    """Return `vision`, `language`, or nothing for a file that is no model of its own."""
    name = file.name.lower()
    if not name.endswith(".gguf"):
        return ""
    if "mmproj" in name:
        return "vision"
    return "" if any(word in name for word in _NO_TEXT_MODEL) else "language"


def _part_of(file: HubFile) -> tuple[str, int, int]:
    """Return what all parts of a split file share, this part's number from 1, and how many there are; else 0 of 0."""
    stem = file.path.removesuffix(".gguf")
    match = _PART.search(stem)
    return (stem[: match.start()], int(match[1]), int(match[2])) if match else (stem, 0, 0)


def _parts(repo: HubRepo, first: HubFile) -> tuple[HubFile, ...]:
    shared, number, count = _part_of(first)
    if not number:
        return (first,)
    parts = [file for file in repo.files if file.path.endswith(".gguf") and _part_of(file)[::2] == (shared, count)]
    if len(parts) != count:
        raise ModelError(
            f"{repo.repo_id} has {len(parts)} of the {count} parts of {first.path}", file=f"{repo.repo_id}/{first.path}"
        )
    return tuple(sorted(parts, key=lambda part: part.path))


def _settings(repos: Sequence[HubRepo]) -> tuple[PlannedFile, ...]:
    """Return the settings of the first repository that has all that matter."""
    for repo in repos:
        there = {file.path: file for file in repo.files}
        if all(name in there for name in _SETTINGS):
            names = (*_SETTINGS, *(name for name in _MORE_SETTINGS if name in there))
            return tuple(_plan(repo, there[name], name, "settings") for name in names)
    return ()


def _templates(repos: Sequence[HubRepo]) -> Iterator[tuple[HubRepo, HubFile]]:
    """Yield a chat template that stands on its own: it comes before the one in a GGUF file."""
    found = ((repo, file) for repo in repos for file in repo.files if file.path == "chat_template.jinja")
    if first := next(found, None):
        yield first


def _all_vision(repos: Sequence[HubRepo]) -> Iterator[HubFile]:
    for repo in repos:
        yield from (file for file in repo.files if _gguf_role(file) == "vision")
        yield from (file for dtype in ONNX_DTYPES for file in _graph(repo, "vision_encoder", dtype))


def _what_there_is(repos: Sequence[HubRepo], lane: str) -> Iterator[str]:
    role, stem = ("vision", "vision_encoder") if lane == "vision encoder" else ("language", "decoder_model_merged")
    for repo in repos:
        yield from (f"ONNX {dtype}" for dtype in ONNX_DTYPES if _graph(repo, stem, dtype))
        yield from (f"GGUF {gguf_dtype(file.name) or file.name}" for file in repo.files if _gguf_role(file) == role)


def _plan(repo: HubRepo, file: HubFile, path: str, role: str, dtype: str = "") -> PlannedFile:
    return PlannedFile(repo, file, path, role, dtype)
