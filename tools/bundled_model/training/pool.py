"""A pool of rendered training pictures with dense labels, kept as chunks on disk."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tools.bundled_model.rendering import render
from tools.bundled_model.scenes import COLORS, PLACES, SHAPES, Scene, coverage, random_scene
from tools.bundled_model.tiling import LONGEST_EDGE, TILE, tiles

CHUNK_PICTURES = 1000
FIRST_SEED = 1_000_000
COLOR_NAMES = tuple(COLORS)


@dataclass(frozen=True, slots=True)
class Pool:
    """Pictures in memory.

    Attributes:
        tiles: uint8 (num_pictures, 5, 64, 64, 3).
        masks: uint8 (num_pictures, 4, 64, 8), the object of each tile, one bit per pixel.
        shapes: uint8 (num_pictures, 4), per place 0 for nothing, else 1 + index into `SHAPES`.
        colors: uint8 (num_pictures, 4), likewise.
    """

    tiles: NDArray[np.uint8]
    masks: NDArray[np.uint8]
    shapes: NDArray[np.uint8]
    colors: NDArray[np.uint8]

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self.tiles)

    @classmethod
    def load(cls, folder: Path) -> Pool:
        """Load every chunk of a folder."""
        chunks = [np.load(path) for path in sorted(folder.glob("chunk-*.npz"))]
        names = (field.name for field in fields(cls))
        return cls(*(np.concatenate([chunk[name] for chunk in chunks]) for name in names))


def training_size(rng: np.random.Generator) -> tuple[int, int]:
    """Draw a picture size: mostly near the model's own resolution, where rendering is fast, sometimes large."""
    longest = int(rng.integers(96, 200)) if rng.random() < 0.93 else int(rng.integers(200, 1281))
    shortest = max(round(longest / rng.uniform(1, 1.9)), 64) if rng.random() < 0.75 else longest
    return (longest, shortest) if rng.random() < 0.6 else (shortest, longest)


def object_masks(scene: Scene, width: int, height: int) -> NDArray[np.bool_]:
    """Return the objects' pixels in the tiles: bool (4, 64, 64), empty where a place is."""
    masks = np.zeros((4, TILE, TILE), np.bool_)
    scale = LONGEST_EDGE / max(width, height)
    for item in scene.objects:
        cover = Image.fromarray(coverage(item, round(width * scale), round(height * scale)))
        whole = np.asarray(cover.resize((LONGEST_EDGE, LONGEST_EDGE), Image.Resampling.BILINEAR)) > 0.5
        row, column = item.quadrant
        masks[PLACES.index(item.place)] = whole[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]
    return masks


def render_chunk(index: int, num_pictures: int = CHUNK_PICTURES) -> dict[str, NDArray[np.uint8]]:
    """Render one chunk of the pool."""
    chunk = {
        "tiles": np.zeros((num_pictures, 5, TILE, TILE, 3), np.uint8),
        "masks": np.zeros((num_pictures, 4, TILE, TILE // 8), np.uint8),
        "shapes": np.zeros((num_pictures, 4), np.uint8),
        "colors": np.zeros((num_pictures, 4), np.uint8),
    }
    for number in range(num_pictures):
        seed = FIRST_SEED + index * CHUNK_PICTURES + number
        scene = random_scene(seed)
        width, height = training_size(np.random.default_rng((seed, 2)))
        chunk["tiles"][number] = tiles(render(scene, width, height))
        chunk["masks"][number] = np.packbits(object_masks(scene, width, height), axis=-1)
        for item in scene.objects:
            place = PLACES.index(item.place)
            chunk["shapes"][number, place] = 1 + SHAPES.index(item.shape)
            chunk["colors"][number, place] = 1 + COLOR_NAMES.index(item.color)
    return chunk


def main() -> None:
    """Render chunks that are not there yet."""
    parser = argparse.ArgumentParser(description="Render pictures for training.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chunks", type=int, nargs=2, default=(0, 55), metavar=("FIRST", "END"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for index in range(*options.chunks):
        path = options.folder / f"chunk-{index:03d}.npz"
        if not path.exists():
            unfinished = path.with_suffix(".part")
            with unfinished.open("wb") as file:
                np.savez(file, allow_pickle=False, **render_chunk(index))
            unfinished.rename(path)


if __name__ == "__main__":
    main()
