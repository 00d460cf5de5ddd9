from __future__ import annotations

from edge_vl.mqtt.packet import Outbound
from edge_vl.mqtt.suspicion import BAN_S, SOON_S, SUSPECT_AFTER, Suspicion


def message(topic: str = "t", payload: bytes = b"x") -> Outbound:
    return Outbound(topic, payload)


def test_a_message_is_suspected_after_three_losses_in_a_row_and_is_known_by_what_it_is() -> None:
    suspicion = Suspicion()
    for _ in range(SUSPECT_AFTER):
        assert not suspicion.is_suspect(message())
        suspicion.note_lost(message(), 0.1)
    assert suspicion.is_suspect(message())
    assert not suspicion.is_suspect(message(payload=b"y"))
    assert not suspicion.is_suspect(message("u"))


def test_a_loss_that_comes_late_or_a_confirmation_begins_the_count_anew() -> None:
    for is_confirmed in (False, True):
        suspicion = Suspicion()
        for _ in range(SUSPECT_AFTER - 1):
            suspicion.note_lost(message(), 0.1)
        if is_confirmed:
            suspicion.note_taken(message(), 1.0)
        else:
            suspicion.note_lost(message(), SOON_S)
        suspicion.note_lost(message(), 0.1)
        assert not suspicion.is_suspect(message())


def test_behind_a_guilty_message_its_topic_is_suspected_until_one_is_taken() -> None:
    suspicion = Suspicion()
    assert not suspicion.note_guilty(message(), 1.0)
    assert suspicion.is_suspect(message(payload=b"y"))
    assert not suspicion.is_banned("t", 1.0)
    suspicion.note_taken(message(payload=b"y"), 1.0)
    assert not suspicion.is_suspect(message(payload=b"z"))


def test_a_topic_with_two_guilty_messages_is_banned_for_a_while() -> None:
    suspicion = Suspicion()
    suspicion.note_guilty(message(), 1.0)
    assert suspicion.note_guilty(message(payload=b"y"), 2.0)
    assert suspicion.is_banned("t", 2.0 + BAN_S - 1)
    assert not suspicion.is_banned("t", 2.0 + BAN_S)
    assert not suspicion.is_suspect(message(payload=b"z"))


def test_a_size_is_learned_only_from_a_message_larger_than_any_that_was_taken() -> None:
    suspicion = Suspicion()
    large = message(payload=bytes(1000))
    suspicion.note_guilty(large, 1.0)
    suspicion.note_taken(message(), 2.0)
    assert suspicion.max_bytes(3.0) == large.num_bytes - 1
    assert suspicion.max_bytes(2.0 + BAN_S) is None
    other = Suspicion()
    other.note_taken(message("u", bytes(2000)), 1.0)
    other.note_guilty(large, 1.0)
    other.note_taken(message(), 2.0)
    assert other.max_bytes(3.0) is None


def test_what_is_remembered_is_bounded() -> None:
    suspicion = Suspicion()
    for number in range(2000):
        suspicion.note_lost(message(payload=b"%d" % number), 0.1)
        suspicion.note_guilty(message(f"t{number}"), 1.0)
        suspicion.note_guilty(message(f"t{number}"), 1.0)
    sizes = (suspicion._losses, suspicion._guilty_bytes, suspicion._banned_until_s)
    assert all(len(memory) <= 256 for memory in sizes)
