from __future__ import annotations

import numpy as np
import pytest

from edge_vl.mqtt.link_model import Curve, LinkModel, fit

PUBLISHED = Curve(floor_s=0.02, a_s=0.0784, b=0.39, c=2.1)


def feed(
    model: LinkModel, curve: Curve, *, num_connections: int, num_exchanges: int, noise: float, seed: int = 0
) -> None:
    random = np.random.default_rng(seed)
    for _ in range(num_connections):
        model.connected()
        for number in range(1, num_exchanges + 1):
            model.exchanged(curve.at(number) * float(np.exp(noise * random.standard_normal())))


@pytest.mark.parametrize(
    "curve",
    [PUBLISHED, Curve(0.005, 0.2, 0.15, 1.0), Curve(0.08, 0.15, 0.3, 3.0)],
    ids=["published", "slow", "high floor"],
)
def test_the_curve_is_recovered_from_noisy_round_trips(curve: Curve) -> None:
    model = LinkModel()
    feed(model, curve, num_connections=8, num_exchanges=60, noise=0.03)
    found = model.curve
    assert found is not None
    assert found.floor_s == pytest.approx(curve.floor_s, abs=0.004)
    assert found.a_s == pytest.approx(curve.a_s, rel=0.2)
    assert found.b == pytest.approx(curve.b, rel=0.25)
    assert found.c == pytest.approx(curve.c, rel=0.25)
    assert model.r_squared > 0.97


def test_an_exact_curve_is_explained_wholly() -> None:
    numbers = np.arange(1.0, 33.0)
    rtts_s = np.array([PUBLISHED.at(number) for number in numbers])
    found, r_squared = fit(numbers, rtts_s, np.ones(32))
    assert r_squared > 0.9999
    assert found.b == pytest.approx(PUBLISHED.b, rel=0.02)
    assert found.c == pytest.approx(PUBLISHED.c, rel=0.05)


def test_noise_without_a_curve_is_not_explained() -> None:
    random = np.random.default_rng(1)
    _, r_squared = fit(np.arange(1.0, 33.0), 0.5 + 0.1 * random.random(32), np.ones(32))
    assert r_squared < 0.5


def test_single_stalls_do_not_move_the_curve() -> None:
    random = np.random.default_rng(2)
    model = LinkModel()
    for _ in range(8):
        model.connected()
        for number in range(1, 41):
            stall_s = 3.0 if random.random() < 0.1 else 0.0
            model.exchanged(PUBLISHED.at(number) * float(np.exp(0.03 * random.standard_normal())) + stall_s)
    assert model.expected_s(40) == pytest.approx(PUBLISHED.at(40), rel=0.15)
    assert model.expected_s(2) == pytest.approx(PUBLISHED.at(2), rel=0.2)


def test_the_next_exchange_after_a_connection_is_expected_to_be_slow_again() -> None:
    model = LinkModel()
    feed(model, PUBLISHED, num_connections=8, num_exchanges=40, noise=0.02)
    late_s = model.expected_s()
    model.connected()
    assert model.expected_s() == pytest.approx(PUBLISHED.at(1), rel=0.15)
    assert late_s < 0.5 * model.expected_s()


def test_a_handful_of_round_trips_is_enough_for_an_expectation() -> None:
    model = LinkModel()
    assert model.expected_s() > 0
    assert model.curve is None
    for rtt_s in (0.2, 0.21, 0.19):
        model.exchanged(rtt_s)
    assert model.curve is None
    assert model.expected_s() == pytest.approx(0.2)
    assert model.window_s("text") == pytest.approx((0.2 - 0.012) * 0.85)


def test_equal_round_trips_are_a_floor_and_nothing_else() -> None:
    model = LinkModel()
    for _ in range(200):
        model.exchanged(0.0004)
    assert model.expected_s() == pytest.approx(0.0004, abs=0.0002)
    assert 0.0 <= model.r_squared <= 1.0


def test_it_is_fitted_when_asked_and_enough_is_new_and_not_at_each_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[int] = []

    def counted(*points: object) -> tuple[Curve, float]:
        fits.append(1)
        return fit(*points)  # type: ignore[arg-type]

    monkeypatch.setattr("edge_vl.mqtt.link_model.fit", counted)
    model = LinkModel()
    for _ in range(320):
        model.exchanged(0.01)
        model.expected_s()
        model.window_s("text")
    assert 2 <= len(fits) <= 11


@pytest.mark.parametrize(
    ("kind", "base_s", "alpha"), [("text", 0.012, 0.85), ("image", 0.048, 0.92), ("audio", 0.024, 0.89)]
)
def test_what_is_above_the_base_is_compensated_in_part(kind: str, base_s: float, alpha: float) -> None:
    model = LinkModel()
    for _ in range(9):
        model.exchanged(base_s * 0.99)
    assert model.window_s(kind) == 0.0  # type: ignore[arg-type]
    for _ in range(9):
        model.exchanged(0.25)
    assert model.window_s(kind) == pytest.approx((0.25 - base_s) * alpha)  # type: ignore[arg-type]
    for _ in range(9):
        model.exchanged(60.0)
    assert model.window_s(kind) == 1.0  # type: ignore[arg-type]


def test_patience_grows_with_the_spread_and_stays_within_its_bounds() -> None:
    steady, wild = LinkModel(), LinkModel()
    random = np.random.default_rng(3)
    for _ in range(300):
        steady.exchanged(0.3)
        wild.exchanged(0.3 + 0.6 * float(random.random()))
    assert steady.timeout_s(0.1, 30.0) < wild.timeout_s(0.1, 30.0)
    assert wild.timeout_s(0.1, 0.2) == 0.2
    assert steady.timeout_s(5.0, 30.0) == 5.0
