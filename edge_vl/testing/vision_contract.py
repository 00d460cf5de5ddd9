"""What every vision encoder must do."""

from __future__ import annotations

import numpy as np

from edge_vl.errors import EngineFault
from edge_vl.plan import ImageUnit
from edge_vl.testing.contract_subject import ContractSubject, expect, skip

__all__ = ["VisionContract"]


class VisionContract(ContractSubject):
    """Tests of the vision lane."""

    def test_contract_the_vision_spec_says_what_encode_returns(self) -> None:
        """Shape, type, finiteness and key of image embeds."""
        with self.open_vision() as vision:
            spec, unit = vision.spec, self.make_unit(vision, 0)
            embeds = vision.encode(unit)
            assert spec.engine == self.engine().name
            assert embeds.key == unit.key
            assert embeds.values.dtype == np.float32
            assert embeds.values.shape == (spec.tokens_per_unit or len(embeds.values), spec.hidden_size)
            assert np.isfinite(embeds.values).all()

    def test_contract_encode_is_deterministic_and_sees_the_picture(self) -> None:
        """Equal pixels give equal embeds, other pixels others."""
        with self.open_vision() as vision:
            first, again = vision.encode(self.make_unit(vision, 0)), vision.encode(self.make_unit(vision, 0))
            other = vision.encode(self.make_unit(vision, 1))
            np.testing.assert_array_equal(first.values, again.values)
            assert np.abs(first.values - other.values).max() > 0

    def test_contract_image_embeds_belong_to_the_caller(self) -> None:
        """The next call does not change them, and they can be written to."""
        with self.open_vision() as vision:
            first = vision.encode(self.make_unit(vision, 0))
            before = first.values.copy()
            vision.encode(self.make_unit(vision, 1))
            np.testing.assert_array_equal(first.values, before)
            first.values[:] = 0

    def test_contract_a_unit_of_a_wrong_size_is_a_fault_and_not_an_abort(self) -> None:
        """Shapes are checked before native code sees them."""
        with self.open_vision() as vision:
            if vision.spec.tile_height == 0:
                skip("the encoder takes units of any size")
            pixels = np.zeros((vision.spec.tile_height + 1, vision.spec.tile_width, 3), np.uint8)
            with expect(EngineFault):
                vision.encode(ImageUnit.of(pixels, "tile"))
            assert vision.encode(self.make_unit(vision, 0)).num_tokens > 0
