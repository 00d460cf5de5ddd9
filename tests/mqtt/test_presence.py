"""Tests of what is known of gateways."""

from __future__ import annotations

from edge_vl.mqtt.presence import OFFLINE_GRACE_S, UNKNOWN_AFTER_S, Gone, Presence


def why(presence: Presence, now_s: float, *, node: str | None = "a", begun: bool = False, boot: str = "") -> str:
    gone = presence.why_gone(node, has_begun=begun, boot_id=boot, asked_s=100.0, now_s=now_s)
    return "" if gone is None else gone.reason


def test_a_gateway_that_is_online_may_take_its_time() -> None:
    presence = Presence()
    presence.note_status("a", "online", 99.0)
    assert why(presence, 1000.0) == ""


def test_of_a_gateway_that_nobody_knows_nothing_is_expected_after_two_seconds() -> None:
    presence = Presence()
    assert why(presence, 100.0 + UNKNOWN_AFTER_S - 0.01) == ""
    assert why(presence, 100.0 + UNKNOWN_AFTER_S) == "nobody"
    assert why(presence, 1000.0, begun=True) == ""


def test_one_that_was_gone_before_is_named_as_such() -> None:
    for status, word in (("offline", "offline"), ("stopped", "stopped")):
        presence = Presence()
        presence.note_status("a", status, 100.5, is_retained=True)
        gone = presence.why_gone("a", has_begun=False, boot_id="", asked_s=100.0, now_s=103.0)
        assert gone == Gone("nobody", f"the gateway 'a' is {word}")


def test_one_that_goes_while_it_answers_has_time_to_come_back() -> None:
    presence = Presence()
    presence.note_status("a", "online", 99.0)
    presence.note_status("a", "offline", 110.0)
    assert why(presence, 110.0 + OFFLINE_GRACE_S - 0.1, begun=True) == ""
    assert why(presence, 110.0 + OFFLINE_GRACE_S, begun=True) == "worker_lost"
    presence.note_status("a", "online", 112.0)
    assert why(presence, 200.0, begun=True) == ""
    presence.note_status("a", "stopped", 300.0)
    assert why(presence, 310.0, begun=True) == "shutdown"


def test_one_that_was_started_anew_does_not_know_the_request() -> None:
    presence = Presence()
    presence.note_status("a", "online", 99.0)
    presence.note_info("a", "first", 99.0)
    assert why(presence, 200.0, begun=True, boot="first") == ""
    presence.note_info("a", "second", 200.0)
    assert why(presence, 201.0, begun=True, boot="first") == ""
    assert why(presence, 200.0 + OFFLINE_GRACE_S, begun=True, boot="first") == "restart"


def test_a_group_needs_one_gateway_that_is_online() -> None:
    presence = Presence()
    presence.note_status("b", "offline", 50.0, is_retained=True)
    assert why(presence, 103.0, node=None) == "nobody"
    presence.note_status("c", "online", 103.0)
    assert why(presence, 200.0, node=None) == ""


def test_words_that_are_no_status_are_passed_over() -> None:
    presence = Presence()
    presence.note_status("a", "{}", 99.0)
    assert why(presence, 103.0) == "nobody"


def test_of_any_number_of_names_only_the_last_heard_of_are_known() -> None:
    presence = Presence()
    presence.note_status("a", "online", 1.0)
    presence.note_status("b", "online", 1.0)
    for number in range(20_000):
        presence.note_status(f"forged{number}", "offline", 2.0)
        presence.note_status("a", "online", 3.0)
    assert presence.is_online("a")
    assert not presence.is_online("b")
    known = [number for number in range(20_000) if why(presence, 1000.0, node=f"forged{number}", begun=True)]
    assert known == list(range(20_000 - 1023, 20_000))


def test_a_start_of_a_gateway_with_an_endless_name_is_passed_over() -> None:
    presence = Presence()
    presence.note_status("a", "online", 99.0)
    presence.note_info("a", "b" * 65, 99.0)
    assert why(presence, 1000.0, boot="another") == ""


def test_a_gateway_of_another_group_does_not_count() -> None:
    presence = Presence()
    presence.note_status("b", "online", 99.0)
    presence.note_info("b", "first", 99.0, group="other")

    def words(group: str, *, is_unheard: bool = False) -> str:
        gone = presence.why_gone(
            None, has_begun=False, boot_id="", asked_s=100.0, now_s=103.0, group=group, is_unheard=is_unheard
        )
        return "" if gone is None else gone.hint

    assert words("g") == "the broker knows of no gateway of the group 'g' that is online; of others there are"
    assert words("other") == ""
    assert words("other", is_unheard=True).startswith("the broker knows of no gateway of the group 'other'")


def test_what_nobody_listened_to_is_given_up_though_the_gateway_is_said_to_be_online() -> None:
    presence = Presence()
    presence.note_status("a", "online", 99.0)

    def reason(now_s: float, *, has_begun: bool = False) -> str:
        gone = presence.why_gone("a", has_begun=has_begun, boot_id="", asked_s=100.0, now_s=now_s, is_unheard=True)
        return "" if gone is None else gone.reason

    assert [reason(101.0), reason(103.0), reason(103.0, has_begun=True)] == ["", "nobody", ""]
