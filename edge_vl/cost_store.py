"""Costs that were learned, kept on disk for the next time."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edge_vl.chunk_policy import ChunkCost
from edge_vl.costs import LEAST_S, Costs, UnitCost

if TYPE_CHECKING:
    from edge_vl.engine import LanguageSpec, VisionSpec
    from edge_vl.machine import Machine
    from edge_vl.model_spec import ModelSpec
    from edge_vl.profile_decision import Decision

__all__ = ["CostKey", "CostStore", "default_folder"]

_log = logging.getLogger(__name__)

_FORMAT = 1
_MAX_FILES = 64
_MAX_BYTES = 1 << 20
_MAX_TEXT = 200
_MOST_KEPT_S = 10_000.0  # nothing that takes longer is worth a prediction
_MOST_NUMBER = 1e12

Row = TypeVar("Row", UnitCost, ChunkCost)


def default_folder() -> Path | None:
    """Return the folder in the user's cache; None where there is no home for it."""
    from edge_vl.environment import read_environment

    cache_dir = read_environment().cache_dir
    return None if cache_dir is None else cache_dir / "costs"


@dataclass(frozen=True, slots=True)
class CostKey:
    """What costs depend on: with anything else here, they have to be learned anew.

    Attributes:
        device: processor or board, its usable cores, and where each lane runs.
        model: name of the model.
        model_bytes: sizes of the files that the two lanes were loaded from, together.
        vision_engine: what sees; empty for a model that reads text only.
        vision_dtype: precision of the vision encoder.
        language_engine: what speaks.
        language_dtype: precision of the language model, and the KV policy where it is another.
        threads: CPU threads of the vision and the language lane, such as `2+2`.
    """

    device: str
    model: str
    model_bytes: int
    vision_engine: str
    vision_dtype: str
    language_engine: str
    language_dtype: str
    threads: str

    @staticmethod
    def of(model: ModelSpec, decision: Decision, vision: VisionSpec | None, language: LanguageSpec) -> CostKey:
        """Name what was loaded.

        Args:
            model: what was loaded.
            decision: which engines were to load it, on which machine, with how many threads.
            vision: the loaded vision encoder; None for a model that reads text only.
            language: the loaded language model.
        """
        lanes = (vision, language)
        where = "+".join(lane.device for lane in lanes if lane is not None)
        cores = decision.machine.cores
        return CostKey(
            device=f"{_device_name(decision.machine)}, {cores} cores, {where}",
            model=model.name,
            model_bytes=sum(_file_bytes(lane.file) for lane in lanes if lane is not None),
            vision_engine="" if vision is None else vision.engine,
            vision_dtype="" if vision is None else vision.dtype,
            language_engine=language.engine,
            language_dtype=" ".join(filter(None, (language.dtype, language.kv and f"KV {language.kv}"))),
            threads="+".join(str(lane.options.threads or cores) for lane in decision.lanes),
        )

    @property
    def file_name(self) -> str:
        """Name of the file that costs are kept in."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest() + ".json"


class CostStore:
    """A folder with one small file for each device, model, pair of engines and number of threads.

    What it holds can be learned again: a file that is damaged counts as none, and a folder that cannot be written to is
    told in the log and harms nothing. All methods may be called from any thread and from several processes.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Keep the folder's name.

        Args:
            folder: where the files are; None: `costs` in the cache folder, or nowhere where there is no home for it.

        Raises:
            RequestError: an environment variable makes no sense.
        """
        self.folder = default_folder() if folder is None else folder

    def load(self, key: CostKey) -> Costs | None:
        """Return what was kept; None if there is nothing that can be read."""
        if self.folder is None:
            return None
        path = self.folder / key.file_name
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise ValueError("it is too large")
            return _costs_from(json.loads(path.read_text(encoding="utf-8")), key)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            _log.info("%s is passed over: %s: %s", path, type(error).__name__, error)
            return None

    def save(self, key: CostKey, costs: Costs) -> bool:
        """Keep costs in the place of what was kept; a chunk table stays where the new costs have none.

        Returns:
            Whether they were written.
        """
        if self.folder is None:
            return False
        if not costs.chunk_table:
            kept = self.load(key)
            costs = costs if kept is None else replace(costs, chunk_table=kept.chunk_table)
        try:
            text = json.dumps({"format": _FORMAT, "key": asdict(key), "costs": asdict(costs)}, allow_nan=False)
            self.folder.mkdir(parents=True, exist_ok=True)
            _write(self.folder / key.file_name, text)
            self._drop_oldest()
        except (OSError, ValueError) as error:
            _log.warning("what was learned about costs cannot be kept in %s: %s", self.folder, error)
            return False
        return True

    def _drop_oldest(self) -> None:
        """Delete the files that were not written to for longest, all but `_MAX_FILES`."""
        assert self.folder is not None
        found: list[tuple[float, Path]] = []
        for path in self.folder.glob("*.json"):
            try:
                found.append((path.stat().st_mtime, path))
            except FileNotFoundError:
                continue  # another process was faster
        for _, path in sorted(found)[:-_MAX_FILES]:
            path.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    """Write a file so that readers see the old or the new one, never a part."""
    number, name = tempfile.mkstemp(prefix=f".{path.stem[:8]}-", dir=path.parent)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _costs_from(content: Mapping[str, Any], key: CostKey) -> Costs:
    """Read costs back.

    Raises:
        ValueError: they are of another format or key, or a number is not one that can have been measured.
        TypeError, KeyError, AttributeError: something is missing, unknown or of another kind.
    """
    if content["format"] != _FORMAT or content["key"] != asdict(key):
        raise ValueError("it is of another version, or not what its name says")
    costs = content["costs"]
    if set(costs) != {field.name for field in fields(Costs)}:
        raise ValueError("it has other costs")
    numbers = {name: costs[name] for name in set(costs) - {"units", "chunk_table"}}
    _check_numbers(numbers)
    if numbers["max_relative_error"] is None:
        raise ValueError("max_relative_error is missing")
    if numbers["prefill_base_s"] == 0 and numbers["prefill_token_s"] == 0:
        raise ValueError("a prefill pass without cost")
    return Costs(
        units={str(shape): _row(UnitCost, unit) for shape, unit in costs["units"].items()},
        chunk_table=tuple(_row(ChunkCost, row) for row in costs["chunk_table"]),
        **numbers,
    )


def _row(kind: type[Row], numbers: Mapping[str, Any]) -> Row:
    _check_numbers(numbers)
    row = kind(**numbers)
    for name in ("num_encodes", "num_prefills", "num_coruns", "num_tokens", "past"):
        if not isinstance(getattr(row, name, 0), int):
            raise TypeError(f"{name} is no whole number")
    if isinstance(row, ChunkCost) and (None in numbers.values() or not row.num_tokens or not row.token_s):
        raise ValueError("a chunk without cost")
    return row


def _check_numbers(numbers: Mapping[str, Any]) -> None:
    """Refuse what is neither None nor a number that can have been measured.

    Raises:
        ValueError: it says which.
    """
    for name, number in numbers.items():
        if number is None:
            continue
        is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
        least, most = (LEAST_S, _MOST_KEPT_S) if name.endswith("_s") else (0, _MOST_NUMBER)
        is_part = name in ("prefill_base_s", "prefill_token_s") and number == 0
        if not is_number or not (is_part or least <= number <= most):
            raise ValueError(f"{name} is {number!r:.40}")


def _device_name(machine: Machine) -> str:
    names = (machine.board or machine.cpu or machine.arch, *(gpu.name for gpu in machine.gpus))
    return " + ".join(names)[:_MAX_TEXT]


def _file_bytes(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:  # an engine may name something that is no file
        return 0
