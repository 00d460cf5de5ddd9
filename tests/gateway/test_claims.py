from __future__ import annotations

from typing import Any

import pytest

from edge_vl.gateway.claims import MAX_MEMBERS, ClaimLedger, claim_key
from edge_vl.mqtt.messages import Claim


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def claim(id: str, node: str = "b", **fields: Any) -> Claim:
    return Claim(id=id, node=node, boot_id=f"{node}1", reply_to=f"edge_vl/x/{id}", **fields)


def ledger(clock: Clock | None = None, node: str = "a", max_claims: int = 10) -> ClaimLedger:
    found = ClaimLedger(node, f"{node}1", "pool", clock=clock or Clock(), max_claims=max_claims)
    found.note_status(node, "online")
    found.note_info("b", "b1", "pool")
    found.note_status("b", "online")
    return found


def test_the_claims_of_a_worker_whose_will_is_out_are_orphans_once() -> None:
    claims = ledger()
    claims.note_claim(claim("x"))
    claims.note_claim(claim("y"))
    claims.note_claim(claim("y", released=True))
    assert claims.orphans() == []
    claims.note_status("b", "offline")
    assert [one.id for one in claims.orphans()] == ["x"]
    assert claims.orphans() == []
    assert claims.is_known(claim_key(claim("x")))


def test_a_new_run_of_a_worker_orphans_what_the_one_before_has_claimed() -> None:
    claims = ledger()
    claims.note_claim(claim("x"))
    claims.note_info("b", "b2", "pool")
    assert [one.id for one in claims.orphans()] == ["x"]


@pytest.mark.parametrize(
    "forged",
    [
        claim("x", "ghost"),
        Claim(id="x", node="b", boot_id="another", reply_to="edge_vl/x/x"),
        Claim(id="x", node="b", boot_id="b1", reply_to="edge_vl/gw/response/v/x"),
        Claim(id="x", node="b", boot_id="b1", reply_to="edge_vl/b/response/v/y"),
        Claim(id="x", node="a", boot_id="former", reply_to="edge_vl/x/x"),
        Claim(id="x", node="stranger", boot_id="stranger1", reply_to="edge_vl/x/x"),
    ],
)
def test_a_claim_that_its_worker_cannot_have_made_counts_for_nothing(forged: Claim) -> None:
    claims = ledger()
    claims.note_info("stranger", "stranger1", "other")
    for node in ("ghost", "stranger"):
        claims.note_status(node, "online")
    claims.note_claim(forged)
    for node in ("ghost", "stranger", "b"):
        claims.note_status(node, "offline")
    assert claims.orphans() == []
    assert not claims.is_known(claim_key(forged))


def test_a_claim_of_a_worker_that_is_offline_counts_for_nothing() -> None:
    claims = ledger()
    claims.note_status("b", "offline")
    claims.note_claim(claim("x"))
    assert claims.orphans() == []


def test_a_release_of_what_nobody_has_claimed_counts_for_nothing() -> None:
    claims = ledger()
    claims.note_claim(claim("x", released=True))
    assert not claims.is_known(claim_key(claim("x")))
    claims.note_claim(claim("x"))
    claims.note_claim(claim("x", "ghost", released=True))
    claims.note_status("b", "offline")
    assert [one.id for one in claims.orphans()] == ["x"]


def test_members_are_remembered_however_many_nodes_say_that_they_are_there() -> None:
    claims = ledger()
    for number in range(3 * MAX_MEMBERS):
        claims.note_status(f"n{number}", "online")
    assert claims.is_member("b")
    claims.note_info("late", "late1", "pool")
    claims.note_status("late", "online")
    assert list(claims.live_peers) == ["b", "late"]
    for number in range(3 * MAX_MEMBERS):
        claims.note_info(f"m{number}", "1", "pool")
    assert claims.is_member("b")
    assert len(claims.live_peers) == 2


def test_who_came_online_after_a_claim_leaves_it_to_those_who_heard_of_it() -> None:
    claims = ledger(node="z")
    claims.note_claim(claim("before"))
    claims.note_info("c", "c1", "pool")
    claims.note_status("c", "online")
    claims.note_claim(claim("after"))
    claims.note_status("b", "offline")
    assert [one.id for one in claims.orphans()] == ["before"], "the other is for c, whose name is smaller"
    claims.note_status("c", "offline")
    assert [one.id for one in claims.orphans()] == ["after"], "c is gone, too"


def test_a_worker_that_is_not_online_itself_tells_nobody() -> None:
    claims = ledger()
    claims.note_away()
    claims.note_info("b", "b1", "pool")
    claims.note_status("b", "offline")
    claims.note_claim(claim("x"))
    assert claims.orphans() == []


def test_only_online_members_of_the_same_group_are_peers() -> None:
    claims = ClaimLedger("a", "a1", "pool", clock=Clock())
    claims.note_info("b", "b1", "other")
    claims.note_status("b", "online")
    claims.note_status("c", "online")
    claims.note_info("d", "d1", "pool")
    claims.note_status("d", "stopped")
    assert not claims.live_peers
    claims.note_info("b", "b1", "pool")
    assert list(claims.live_peers) == ["b"]


def test_a_claim_of_what_has_ended_is_to_be_answered_unless_it_is_ones_own() -> None:
    claims = ledger()
    claims.note_claim(claim("x"))
    assert not claims.has_ended(claim("x"))
    claims.note_status("b", "offline")
    claims.orphans()
    assert claims.has_ended(claim("x"))
    assert not claims.has_ended(claim("x", released=True))
    claims.take(claim("y", "a"))
    claims.close(claim_key(claim("y", "a")))
    assert not claims.has_ended(claim("y", "a"))


def test_claims_are_forgotten_when_their_clients_have_stopped_waiting() -> None:
    clock = Clock()
    claims = ledger(clock)
    claims.note_claim(claim("x", deadline_ms=1000))
    clock.now_s = 1.1
    claims.tidy()
    claims.note_status("b", "offline")
    assert claims.orphans() == []


def test_no_more_is_remembered_than_may_be() -> None:
    claims = ledger(max_claims=3)
    for number in range(10):
        claims.note_claim(claim(f"x{number}"))
        claims.note_claim(claim(f"gone{number}", released=True))
    assert not claims.is_known(claim_key(claim("x0")))
    claims.note_status("b", "offline")
    assert [one.id for one in claims.orphans()] == ["x7", "x8", "x9"]


def test_the_release_of_ones_own_claim_by_another_is_told_when_it_was_asked_for() -> None:
    claims = ledger()
    claims.take(claim("x", "a"))
    assert claims.note_claim(claim("x", "a")) is None
    assert claims.note_claim(claim("x", "a", released=True)) is None, "nobody was asked"
    claims.ask()
    assert claims.note_claim(claim("x", "a", released=True)) == claim_key(claim("x", "a"))
