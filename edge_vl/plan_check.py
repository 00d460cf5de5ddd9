"""Check that a plan keeps its own rules, and what those rules let a scheduler do with it."""

from __future__ import annotations

from collections.abc import Sequence

from edge_vl.errors import ModelError
from edge_vl.plan import ExactnessRules, ImageChunk, Plan, TextChunk

__all__ = ["check_plan", "may_cut_image", "may_split"]


def check_plan(plan: Plan, *, file: str = "") -> None:
    """Refuse a plan that breaks its own rules, before anything is computed for it.

    Plans come from families and from engines that cut pictures themselves, which may be anybody's.

    Args:
        plan: to check; its pixels are not looked at.
        file: of the model, for the message.

    Raises:
        ModelError: it says what is wrong with which chunk.
    """
    chunks = plan.chunks
    if not chunks:
        raise _broken("it has no chunks", file)
    position = 0
    images: list[ImageChunk] = []
    for index, chunk in enumerate(chunks):
        if chunk.position != position:
            raise _broken(f"chunk {index} begins at position {chunk.position} and should at {position}", file)
        if isinstance(chunk, TextChunk):
            num_positions = len(chunk.token_ids)
            if not num_positions:
                raise _broken(f"chunk {index} is a text without tokens", file)
        else:
            num_positions = chunk.num_positions
            if not 0 < num_positions <= chunk.num_tokens:
                raise _broken(
                    f"chunk {index} is an image of {chunk.num_tokens} tokens that spans {num_positions} positions",
                    file,
                )
            images.append(chunk)
        position += num_positions
    if not isinstance(chunks[-1], TextChunk):
        raise _broken("it ends in a picture, so that nothing asks for an answer; check the chat template", file)
    _check_pictures(images, plan.rules, file)


def may_split(plan: Plan) -> bool:
    """Say whether its image units may be prefilled before later ones are encoded, and the text before them at once.

    A picture of one unit is closed in itself: nothing in it looks at what comes later. The units of one picture may go
    in apart where each is encoded on its own and image tokens attend causally.
    """
    rules = plan.rules
    if not rules.text_prefix_ok:
        return False
    if rules.encode_unit == "tile" and rules.prefill_cut == "any":
        return True
    images = plan.images
    return not images or images[-1].image + 1 == len(images)


def may_cut_image(plan: Plan) -> bool:
    """Say whether prefill may stop inside a unit's image tokens."""
    return plan.rules.prefill_cut == "any"


def _check_pictures(images: list[ImageChunk], rules: ExactnessRules, file: str) -> None:
    """Check the units of each picture against the rules."""
    first = 0
    for index, chunk in enumerate(images):
        unit = chunk.unit
        if unit.num_tokens and (unit.num_tokens, unit.num_positions) != (chunk.num_tokens, chunk.num_positions):
            raise _broken(
                f"a unit of picture {chunk.image + 1} was cut into {unit.num_tokens} tokens at {unit.num_positions} "
                f"positions and is planned with {chunk.num_tokens} at {chunk.num_positions}",
                file,
            )
        if index + 1 == len(images) or images[index + 1].image != chunk.image:
            _check_picture(images[first : index + 1], rules, file)
            if chunk.image != (images[first - 1].image + 1 if first else 0):
                raise _broken(f"picture {chunk.image + 1} does not stand in its turn", file)
            first = index + 1


def _check_picture(units: list[ImageChunk], rules: ExactnessRules, file: str) -> None:
    """Check kinds, order and completeness of one picture."""
    kinds = [chunk.unit.kind for chunk in units]
    name = f"picture {units[0].image + 1}"
    if "image" in kinds:
        if kinds.count("image") != len(kinds):
            raise _broken(f"{name} has a whole picture among its tiles", file)
        return
    if rules.encode_unit == "image":
        raise _broken(f"{name} is cut into tiles, and the model's pictures are encoded whole", file)
    if "thumbnail" in kinds:
        wanted = {"thumbnail_last": len(kinds) - 1, "thumbnail_first": 0}.get(rules.tile_order)
        found = kinds.index("thumbnail")
        if kinds.count("thumbnail") > 1 or found != wanted or len(kinds) == 1:
            raise _broken(
                f"{name} has thumbnails out of place: {', '.join(kinds)}; the model's tile order is {rules.tile_order}",
                file,
            )
        units = units[:found] + units[found + 1 :]
    _check_tiles(units, name, file)


def _check_tiles(tiles: Sequence[ImageChunk], name: str, file: str) -> None:
    """Check that tiles with places fill their grid row by row."""
    rows, columns = tiles[-1].unit.row, tiles[-1].unit.column
    if not (rows or columns):  # only the encoder knows their places
        if any(tile.unit.row or tile.unit.column for tile in tiles):
            raise _broken(f"{name} has tiles with places and tiles without", file)
        return
    if len(tiles) != rows * columns:
        raise _broken(f"{name} has {len(tiles)} tiles, and its last is at row {rows} and column {columns}", file)
    for index, tile in enumerate(tiles):
        row, column = divmod(index, columns)
        if tile.unit.row != row + 1 or tile.unit.column != column + 1:
            raise _broken(
                f"{name} has the tile of row {tile.unit.row} and column {tile.unit.column} where that of row {row + 1} "
                f"and column {column + 1} belongs",
                file,
            )


def _broken(what: str, file: str) -> ModelError:
    return ModelError(f"the plan of the prompt cannot be run: {what}", file=file)
