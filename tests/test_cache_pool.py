"""Tests of the pool of KV caches and of the notes of what is in them, on the caches of the fake engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from edge_vl.cache_pool import CachePool
from edge_vl.engine import ImageEmbeds, LaneOptions, LanguageModel, Prefillable
from edge_vl.entries import entries_of
from edge_vl.errors import CacheFull
from edge_vl.models import find_model
from edge_vl.passes import pieces_of
from edge_vl.plan import Chunk, ExactnessRules, ImageChunk, ImageUnit, Plan, TextChunk
from edge_vl.resident import Resident
from edge_vl.testing import FakeEngine
from edge_vl.testing.fake_cache import FakeKVCache

RULES = ExactnessRules("tile", "any", True, "thumbnail_last", "any")
WHOLE = replace(RULES, rollback="whole")
HIDDEN = 32
MIB = 1 << 20


def text(*ids: int) -> TextChunk:
    return TextChunk(ids, 0)


def image(seed: int, num_tokens: int = 4) -> ImageChunk:
    unit = ImageUnit.of(np.full((2, 2, 3), seed, np.uint8), "tile", 1, 1)
    return ImageChunk(unit, 0, num_tokens, 0, num_tokens)


def plan_of(*chunks: Chunk, rules: ExactnessRules = RULES) -> Plan:
    return Plan(chunks, rules)


def embeds_of(chunk: ImageChunk) -> ImageEmbeds:
    random = np.random.default_rng(list(bytes.fromhex(chunk.unit.key)))
    return ImageEmbeds(random.standard_normal((chunk.num_tokens, HIDDEN)).astype(np.float32), chunk.unit.key)


def contents(cache: object) -> bytes:
    assert isinstance(cache, FakeKVCache)
    return cache.keys.tobytes() + cache.values.tobytes()


@dataclass
class Bench:
    """A pool on a fake language model."""

    engine: FakeEngine
    language: LanguageModel
    pool: CachePool

    def fill(self, resident: Resident, chunks: Sequence[Chunk]) -> None:
        """Compute what of a prompt is not in a cache, as the loop does."""
        for piece in pieces_of(chunks, resident.num_tokens):
            item: Prefillable
            if isinstance(piece.chunk, ImageChunk):
                whole = embeds_of(piece.chunk)
                item = ImageEmbeds(whole.values[piece.start : piece.stop], whole.key)
            else:
                item = piece.text
            self.language.prefill(resident.cache, [item])
        resident.note(entries_of(chunks)[resident.num_tokens :])

    def take(self, plan: Plan, own: Resident | None = None) -> tuple[Resident, int]:
        """Take a cache for a prompt, and check that what is in it is the prompt's beginning, as computed anew."""
        entries = entries_of(plan.chunks)
        resident, kept = self.pool.take(plan, entries, own)
        assert kept == resident.num_tokens == resident.cache.num_tokens < len(entries)
        assert (resident.entries == entries[:kept]).all()
        anew = Resident()
        anew.begin(self.language)
        self.fill(anew, plan.chunks)
        anew.trim(kept)
        assert contents(resident.cache) == contents(anew.cache)
        anew.drop()
        return resident, kept

    def use(self, *chunks: Chunk, own: Resident | None = None, rules: ExactnessRules = RULES) -> Resident:
        """Let a prompt be computed and its cache be given back."""
        plan = plan_of(*chunks, rules=rules)
        resident, _ = self.take(plan, own)
        self.fill(resident, plan.chunks)
        self.pool.give_back(resident)
        return resident

    def pin(self, *chunks: Chunk) -> Resident:
        """Pin a beginning."""
        resident = Resident()
        resident.begin(self.language)
        self.fill(resident, chunks)
        self.pool.pin(resident)
        return resident

    @property
    def num_caches(self) -> int:
        """Caches that are open."""
        return self.engine.num_open - 1


def bench(max_idle: int = 4, max_idle_bytes: int = MIB, block_entries: int = 1) -> Bench:
    engine = FakeEngine(block_entries=block_entries)
    language = engine.load_language(find_model("bundled"), LaneOptions())
    return Bench(engine, language, CachePool(language, max_idle=max_idle, max_idle_bytes=max_idle_bytes))


def test_the_cache_with_the_longest_common_beginning_is_used() -> None:
    one = bench()
    one.use(text(1, 2), image(1), text(9, 9))
    longest = one.use(text(1, 2), image(1), text(3, 4, 5, 6))
    one.use(text(1, 7, 7, 7, 7, 7, 7, 7, 7))
    resident, kept = one.take(plan_of(text(1, 2), image(1), text(3, 4, 8)))
    assert (resident is longest, kept) == (True, 8)


def test_a_prompt_that_is_in_a_cache_as_a_whole_has_its_last_entry_computed_again() -> None:
    one = bench()
    one.use(text(1, 2, 3))
    _, kept = one.take(plan_of(text(1, 2, 3)))
    assert kept == 2
    _, kept = one.take(plan_of(text(1)))
    assert kept == 0


def test_an_image_of_which_a_cache_has_only_a_part_is_computed_as_a_whole() -> None:
    one = bench()
    plan = plan_of(text(1, 2), image(1), image(2), text(3))
    resident, _ = one.take(plan)
    one.fill(resident, plan.chunks)
    resident.trim(8)
    one.pool.give_back(resident)
    assert one.take(plan)[1] == 6


def test_images_with_other_pixels_are_not_taken_for_the_same() -> None:
    one = bench()
    one.use(text(1, 2), image(1), text(3))
    assert one.take(plan_of(text(1, 2), image(2), text(3)))[1] == 2


def test_inside_a_compressed_block_a_cache_is_used_up_to_the_border_of_the_block() -> None:
    one = bench(block_entries=4)
    one.use(text(*range(1, 20)))
    assert one.take(plan_of(text(*range(1, 8), 40, 41)))[1] == 4


def test_inside_the_last_block_a_cache_is_used_to_the_last_common_entry() -> None:
    one = bench(block_entries=4)
    one.use(text(*range(1, 8)))
    assert one.take(plan_of(text(*range(1, 7), 40, 41)))[1] == 6


def torn(cuts_images: bool) -> int:
    """Return how much of a prompt that differs behind an image, entries 5 to 10, is kept of a cache in blocks of 4."""
    one = bench(block_entries=4)
    rules = RULES if cuts_images else replace(RULES, prefill_cut="block")
    one.use(text(1, 2, 3, 4, 5), image(1, 6), text(6, 7, 8, 9), rules=rules)
    return one.take(plan_of(text(1, 2, 3, 4, 5), image(1, 6), text(40), rules=rules))[1]


def test_the_border_of_a_block_may_tear_an_image_that_prefill_may_stop_in() -> None:
    assert torn(cuts_images=True) == 8


def test_an_image_that_the_border_of_a_block_would_tear_is_computed_as_a_whole_from_an_earlier_border() -> None:
    assert torn(cuts_images=False) == 4


def test_an_idle_cache_is_taken_over_where_at_least_half_of_it_is_of_use() -> None:
    one = bench()
    before = one.use(text(1, 2, 3, 4))
    resident, kept = one.take(plan_of(text(1, 2, 8, 8)))
    assert (resident is before, kept, one.num_caches) == (True, 2, 1)


def test_an_idle_cache_is_forked_where_less_of_it_is_of_use_and_stays_as_it_is() -> None:
    one = bench()
    before = one.use(text(1, 2, 3, 4, 5))
    there = contents(before.cache)
    resident, kept = one.take(plan_of(text(1, 2, 8, 8)))
    assert (resident is before, kept, one.num_caches) == (False, 2, 2)
    one.fill(resident, [text(1, 2, 8, 8)])
    assert contents(before.cache) == there


def test_a_cache_in_use_is_forked_and_stays_as_it_is() -> None:
    one = bench()
    plan = plan_of(text(1, 2), image(1), text(3))
    busy, _ = one.take(plan)
    one.fill(busy, plan.chunks)
    there = contents(busy.cache)
    resident, kept = one.take(plan_of(text(1, 2), image(1), text(4)))
    assert (resident is busy, kept) == (False, 6)
    one.fill(resident, [text(1, 2), image(1), text(4)])
    assert contents(busy.cache) == there


def test_a_pinned_cache_comes_first_among_equals_and_is_never_changed() -> None:
    one = bench()
    pinned = one.pin(text(1, 2, 3))
    there = contents(pinned.cache)
    other = one.use(text(1, 2, 3, 9))
    assert other is not pinned
    assert one.num_caches == 2
    resident, kept = one.take(plan_of(text(1, 2, 3, 4)))
    assert kept == 3
    assert resident not in (pinned, other)  # forked, although the other one could have been taken over
    one.fill(resident, [text(1, 2, 3, 4)])
    one.pool.give_back(resident)
    assert contents(pinned.cache) == there


@pytest.mark.parametrize("seed", range(5))
def test_of_equal_caches_it_is_always_the_one_used_last(seed: int) -> None:
    one = bench(max_idle=20)
    plan = plan_of(text(1, 2, 3, 4))
    entries = entries_of(plan.chunks)
    made = [one.pool.take(plan, entries, None)[0] for _ in range(8)]
    for resident in made:
        one.fill(resident, plan.chunks)
    for number in np.random.default_rng(seed).permutation(8):
        one.pool.give_back(made[number])
    assert one.take(plan_of(text(1, 2, 3, 9)))[0] is made[-1]


def test_a_conversation_always_gets_its_own_cache() -> None:
    one = bench()
    one.use(text(1, 2), image(1), text(3))
    own = Resident(is_owned=True)
    for question in (4, 5):
        resident, kept = one.take(plan_of(text(1, 2), image(1), text(question)), own)
        assert (resident is own, kept) == (True, 6)
        one.fill(own, [text(1, 2), image(1), text(question)])
        one.pool.give_back(own)
    one.use(*[text(1, 2, *range(20, 40))])
    resident, kept = one.take(plan_of(text(1, 2, *range(20, 41))), own)
    assert (resident is own, kept) == (True, 22)
    assert one.num_caches == 3


def test_the_cache_of_a_conversation_is_used_by_others_but_never_taken_over_nor_dropped_for_room_among_idle_ones() -> (
    None
):
    one = bench(max_idle=0)
    own = Resident(is_owned=True)
    one.use(text(1, 2, 3, 4), own=own)
    there = contents(own.cache)
    resident, kept = one.take(plan_of(text(1, 2, 3, 5)))
    assert (resident is own, kept) == (False, 3)
    one.fill(resident, [text(1, 2, 3, 5)])
    one.pool.give_back(resident)
    assert not resident.has_cache
    assert contents(own.cache) == there


def test_where_only_whole_sequences_can_be_forgotten_a_cache_is_used_as_a_whole_or_not_at_all() -> None:
    one = bench()
    one.use(text(1, 2, 3), rules=WHOLE)
    assert one.take(plan_of(text(1, 2, 3, 4), rules=WHOLE))[1] == 3
    assert one.take(plan_of(text(1, 2, 9), rules=WHOLE))[1] == 0
    assert one.take(plan_of(text(1, 2, 3), rules=WHOLE))[1] == 0  # its last entry would have to be forgotten


def test_where_a_picture_changes_what_comes_before_it_nothing_is_kept() -> None:
    one = bench()
    one.pin(text(1, 2))
    one.use(text(1, 2, 3))
    rules = replace(RULES, text_prefix_ok=False)
    assert one.take(plan_of(text(1, 2, 3, 4), rules=rules))[1] == 0


def test_the_caches_used_longest_ago_make_room() -> None:
    one = bench(max_idle=2)
    first, second = one.use(text(1, 1, 1)), one.use(text(2, 2, 2))
    assert one.take(plan_of(text(1, 1, 9)))[0] is first
    one.pool.give_back(first)
    third = one.use(text(3, 3, 3))
    assert [resident.has_cache for resident in (first, second, third)] == [True, False, True]


def test_idle_caches_stay_within_their_bytes() -> None:
    entry_bytes = 2 * HIDDEN * 8
    one = bench(max_idle=10, max_idle_bytes=6 * entry_bytes)
    kept = [one.use(*[text(*[number] * 3)]) for number in range(1, 4)]
    assert [resident.has_cache for resident in kept] == [False, True, True]
    assert one.pool.idle_bytes == 6 * entry_bytes
    large = one.use(text(*[7] * 7))
    assert not any(resident.has_cache for resident in (*kept, large))
    assert one.num_caches == 0


def test_no_room_for_one_more_cache_is_told_and_what_is_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench()
    before = one.use(text(1, 2, 3, 4, 5))
    there = contents(before.cache)

    def full(*_: object) -> FakeKVCache:
        raise CacheFull("fake", 0)

    with monkeypatch.context() as patch:
        patch.setattr(FakeKVCache, "fork", full)
        patch.setattr(one.language, "new_cache", full)
        for ids in ((7, 7), (1, 2, 9)):
            plan = plan_of(text(*ids))
            with pytest.raises(CacheFull):
                one.pool.take(plan, entries_of(plan.chunks), None)
    assert contents(before.cache) == there
    assert one.pool.drop_oldest()  # nobody uses it, even after a fork of it failed
    assert one.num_caches == 0


def test_making_room_takes_the_oldest_unused_cache_then_pinned_ones_and_never_one_in_use() -> None:
    one = bench()
    pinned = one.pin(text(1, 2))
    own = Resident(is_owned=True)
    one.use(text(6, 6), own=own)
    idle = one.use(text(5, 5))
    busy, _ = one.take(plan_of(text(4, 4)))
    order = []
    while one.pool.drop_oldest():
        order.append(next(each for each in (own, idle, pinned) if not each.has_cache and each not in order))
    assert order == [own, idle, pinned]
    assert busy.has_cache
    assert one.take(plan_of(text(1, 2, 3)))[1] == 0
    one.pool.give_back(busy)
    assert one.pool.drop_oldest()


def test_a_cache_that_must_not_be_used_again_is_dropped() -> None:
    one = bench()
    resident, _ = one.take(plan_of(text(1, 2)))
    one.fill(resident, [text(1, 2)])
    one.pool.discard(resident)
    assert one.num_caches == 0
    assert one.take(plan_of(text(1, 2, 3)))[1] == 0


def test_the_cache_of_a_lane_that_is_lost_is_let_go_of_and_not_closed() -> None:
    one, other = bench(), bench()
    own = Resident(is_owned=True)
    one.use(text(1, 2, 3), own=own)
    resident, kept = other.take(plan_of(text(1, 2, 3, 4)), own)
    assert (resident is own, kept) == (True, 0)
    assert one.num_caches == 1
    assert own.belongs_to(other.language)


def test_a_pool_that_gives_up_hands_out_every_cache_and_knows_none_any_more() -> None:
    one = bench()
    residents = [one.pin(text(1)), one.use(text(2, 2)), one.take(plan_of(text(3, 3)))[0]]
    caches = [resident.cache for resident in residents]
    given = one.pool.give_up()
    assert len(given) == 3
    assert {id(cache) for cache in given} == {id(cache) for cache in caches}
    assert not any(resident.has_cache for resident in residents)
    assert one.num_caches == 3
    assert one.pool.idle_bytes == 0


def test_a_closed_pool_leaves_nothing_open() -> None:
    one = bench()
    one.pin(text(1))
    one.use(text(2, 2))
    busy, _ = one.take(plan_of(text(3, 3)))
    one.pool.close()
    assert not busy.has_cache
    assert one.num_caches == 0


def test_a_donor_has_the_most_entries_of_a_prompt_at_their_places() -> None:
    one = bench()
    one.use(text(1, 2), image(1), image(2), text(3))
    best = one.use(text(1, 2), image(5), image(3), image(4), text(3))
    one.use(text(1, 2, 8), image(3), image(4), text(3))  # the same images, one place further
    plan = plan_of(text(1, 2), image(6), image(3), image(4), text(3))
    donor = one.pool.donor(plan, entries_of(plan.chunks), 2)
    assert donor is best
    assert one.pool.donor(plan_of(text(9, 9, 9)), entries_of([text(9, 9, 9)]), 0) is None


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_in_whatever_order_a_cache_holds_the_beginning_that_it_says(seed: int) -> None:
    random = np.random.default_rng(seed)
    one = bench(max_idle=int(random.integers(0, 4)), max_idle_bytes=int(random.integers(20, 60)) * 2 * HIDDEN * 8)
    one.pin(text(1, 2))
    talk = Resident(is_owned=True)
    busy: list[tuple[Resident, Plan]] = []
    for _ in range(60):
        if busy and random.random() < 0.5:
            resident, plan = busy.pop(int(random.integers(len(busy))))
            if random.random() < 0.8:
                one.fill(resident, plan.chunks)
            if random.random() < 0.8:
                one.pool.give_back(resident)
            else:
                one.pool.discard(resident)
            continue
        images = [image(int(seed)) for seed in random.integers(0, 2, random.integers(0, 4))]
        plan = plan_of(text(1, 2), *images, text(*(int(one) for one in random.integers(3, 5, 3))))
        own = talk if random.random() < 0.2 and all(each is not talk for each, _ in busy) else None
        busy.append((one.take(plan, own)[0], plan))
    for resident, _ in busy:
        one.pool.give_back(resident)
    talk.drop()
    one.pool.close()
    assert one.num_caches == 0


def test_notes_grow_with_a_cache_and_are_cut_with_it() -> None:
    one = bench()
    resident = Resident()
    resident.begin(one.language)
    long = text(*(number % 200 for number in range(1000)))
    one.fill(resident, [text(*long.token_ids[:200])])
    one.fill(resident, [long])
    assert (resident.entries == entries_of([long])).all()
    resident.trim(300)
    assert resident.num_tokens == resident.cache.num_tokens == 300
    resident.trim(400)  # there are not so many
    assert resident.num_tokens == 300
    resident.drop()
    resident.drop()
    assert (resident.has_cache, resident.num_tokens, one.num_caches) == (False, 0, 0)


def test_a_fork_that_cannot_be_cut_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench()
    resident = one.use(text(1, 2, 3, 4, 5))

    def fail(*_: object) -> None:
        raise ValueError("only all of them")

    monkeypatch.setattr(FakeKVCache, "trim", fail)
    with pytest.raises(ValueError, match="only all"):
        Resident().begin_like(resident, 2)
    assert one.num_caches == 1
