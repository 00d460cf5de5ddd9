from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_vl.gateway.recent_ids import RecentIds


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("123456"))), st.integers(1, 5))
def test_an_id_is_new_unless_it_is_among_the_last_different_ones(asked: list[tuple[str, str]], most: int) -> None:
    ids = RecentIds(most)
    remembered: list[tuple[str, str]] = []
    for key in asked:
        assert ids.add(*key) == (key not in remembered)
        remembered = [*(other for other in remembered if other != key), key][-most:]
        assert len(ids) == len(remembered)
        for client in "ab":
            for id in "123456":
                assert ids.is_known(client, id) == ((client, id) in remembered)
                assert ids.is_known(None, id) == any(id == other for _, other in remembered)
