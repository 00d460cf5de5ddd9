from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.topic_fuzz import TopicFuzz, fuzz, gateway_under_fuzz, observer_of
from tests.mosquitto import Mosquitto

NUM_PAYLOADS = 1_000
MAX_GROWTH = 0.15


@pytest.mark.timeout(600)
def test_a_gateway_withstands_anything_on_every_topic(tmp_path: Path, mosquitto: Mosquitto) -> None:
    with gateway_under_fuzz(tmp_path / "gateway", mosquitto) as gateway, observer_of(mosquitto) as observer:
        run = TopicFuzz(gateway, observer)
        fuzz(run, NUM_PAYLOADS, seed=0, max_growth=MAX_GROWTH)
        assert run.num_sent >= NUM_PAYLOADS * 0.9
        assert run.num_owed > NUM_PAYLOADS // 20
        assert gateway.stop() == 0
