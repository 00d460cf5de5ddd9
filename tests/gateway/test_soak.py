from __future__ import annotations

import pytest

from benchmarks.mqtt_soak import soak
from benchmarks.soak_picture import soak_picture
from tests.mosquitto import has_mosquitto

DURATION_S = 300.0


@pytest.mark.timeout(600)
@pytest.mark.skipif(not has_mosquitto(), reason="mosquitto is not installed")
def test_five_minutes_of_everything_at_once_leak_nothing_and_every_request_ends_once() -> None:
    found = soak(DURATION_S)
    assert found.faults == [], found.counts
    missed = {name: bar for name, bar in found.bars.items() if not bar.ok}
    assert missed == {}, found.counts
    assert soak_picture(found.readings).startswith("<svg")
