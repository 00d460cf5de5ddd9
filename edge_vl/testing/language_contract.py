"""What every language model and its cache must do."""

from __future__ import annotations

import dataclasses

import numpy as np

from edge_vl.engine import Graftable, ImageEmbeds, KVCache, LanguageModel, Prefillable
from edge_vl.errors import EngineFault, RequestError
from edge_vl.kv_offer import KVOffer
from edge_vl.kv_policy import parse_kv_policy
from edge_vl.plan import TextChunk
from edge_vl.testing.contract_subject import ContractSubject, expect, skip

__all__ = ["LanguageContract"]


class LanguageContract(ContractSubject):
    """Tests of the language lane."""

    def test_contract_logits_have_the_width_of_the_vocabulary_and_belong_to_the_caller(self) -> None:
        """Shape, type and ownership of logits."""
        with self.open_language() as language:
            cache = language.new_cache()
            logits = self.prefill(language, cache, self.make_prompt(language))
            assert logits.shape == (language.spec.vocab_size,)
            assert logits.dtype == np.float32
            assert np.isfinite(logits).all()
            before = logits.copy()
            following = language.decode(cache, self.token_ids(1)[0])
            np.testing.assert_array_equal(logits, before)
            assert following.shape == before.shape
            following[:] = 0
            cache.close()

    def test_contract_a_kv_policy_is_kept_or_refused_and_never_ignored(self) -> None:
        """What the engine does not describe is refused, and what it keeps is named by the spec."""
        if not self.has_language:
            skip("no language lane")
        engine, model = self.engine(), self.model()
        offer = KVOffer.of(engine.describe(model))
        for said in ("f32", "k8v4", "text=int8,image=int4", "text=f16,last_layers=int8"):
            policy = parse_kv_policy(said)
            options = dataclasses.replace(self.options(), kv=policy)
            if offer.lacks(policy):
                with expect(RequestError):
                    engine.load_language(model, options)
                continue
            try:
                language = engine.load_language(model, options)
            except RequestError:
                continue  # this model does not allow it
            name = language.spec.kv
            language.close()
            assert name == policy.name

    def test_contract_the_tokenizer_belongs_to_the_weights(self) -> None:
        """No token of the tokenizer is outside the vocabulary, and text comes back as it went in."""
        with self.open_language() as language:
            tokenizer = language.tokenizer
            assert tokenizer.vocab_size <= language.spec.vocab_size
            ids = tokenizer.encode_text("red")
            assert b"".join(tokenizer.token_bytes(token_id) for token_id in ids) == b"red"

    def test_contract_a_prompt_may_be_split_anywhere(self) -> None:
        """Any two runs give the cache and logits of one."""
        with self.open_language() as language:
            rows = self.make_rows(language)
            whole = language.new_cache()
            expected = self.prefill(language, whole, rows)
            for cut in range(1, len(rows)):
                cache = language.new_cache()
                assert language.prefill(cache, rows[:cut], want_logits=False) is None
                self.assert_same(self.prefill(language, cache, rows[cut:]), expected)
                assert cache.num_tokens == whole.num_tokens
                cache.close()
            whole.close()

    def test_contract_decode_equals_prefill_of_that_token(self) -> None:
        """Both verbs append a token in the same way."""
        with self.open_language() as language:
            tokens = self.token_ids(4)
            one, other = language.new_cache(), language.new_cache()
            self.prefill(language, one, self.make_prompt(language))
            self.prefill(language, other, self.make_prompt(language))
            for token_id in tokens:
                decoded = language.decode(one, token_id)
                self.assert_same(decoded, self.prefill(language, other, [TextChunk((token_id,), other.next_position)]))
            assert one.num_tokens == other.num_tokens
            one.close()
            other.close()

    def test_contract_every_entry_counts(self) -> None:
        """The first token and the picture still matter at the end: nothing is dropped on the way."""
        with self.open_language() as language:
            prompt = self.make_prompt(language)
            cache = language.new_cache()
            expected = self.prefill(language, cache, prompt)
            cache.close()
            first = prompt[0]
            assert isinstance(first, TextChunk)
            changed: list[Prefillable] = [TextChunk((first.token_ids[0] + 1, *first.token_ids[1:]), 0), *prompt[1:]]
            cache = language.new_cache()
            assert np.abs(self.prefill(language, cache, changed) - expected).max() > 0
            cache.close()

    def test_contract_a_fork_is_independent(self) -> None:
        """Two continuations of one prompt do not see each other."""
        with self.open_language() as language:
            a, b = self.token_ids(2)
            trunk = language.new_cache()
            self.prefill(language, trunk, self.make_prompt(language))
            expected_a, expected_b = (self.continue_prompt(language, token_id) for token_id in (a, b))
            fork = trunk.fork()
            assert (fork.num_tokens, fork.next_position) == (trunk.num_tokens, trunk.next_position)
            self.assert_same(language.decode(fork, a), expected_a)
            self.assert_same(language.decode(trunk, b), expected_b)
            trunk.close()
            assert np.isfinite(language.decode(fork, b)).all()
            fork.close()

    def test_contract_trim_forgets_exactly(self) -> None:
        """A trimmed cache is as if the rest had never been there; a wrong number is refused."""
        with self.open_language() as language:
            cache = language.new_cache()
            prompt = self.make_prompt(language)
            self.prefill(language, cache, prompt)
            kept = cache.num_tokens
            for token_id in self.token_ids(5):
                language.decode(cache, token_id)
            cache.trim(kept)
            assert (cache.num_tokens, cache.next_position) == (kept, kept)
            token_id = self.token_ids(1)[0]
            self.assert_same(language.decode(cache, token_id), self.continue_prompt(language, token_id))
            with expect(ValueError):
                cache.trim(cache.num_tokens + 1)
            cache.trim(0)
            self.assert_same(
                self.prefill(language, cache, [*prompt, TextChunk((token_id,), kept)]),
                self.continue_prompt(language, token_id),
            )
            cache.close()

    def test_contract_a_failed_call_leaves_the_cache_as_it_was(self) -> None:
        """A bad token id or too many tokens are faults that cost nothing."""
        with self.open_language() as language:
            cache = language.new_cache()
            self.prefill(language, cache, self.make_prompt(language))
            before = cache.num_tokens
            outside = language.spec.vocab_size
            too_many = TextChunk(self.token_ids(language.spec.context_length), before)
            bad_embeds = ImageEmbeds(np.zeros((2, language.spec.hidden_size + 1), np.float32), "bad")
            for run in ([TextChunk((outside,), before)], [TextChunk((-1,), before)], [too_many], [bad_embeds], []):
                with expect(EngineFault):
                    language.prefill(cache, run)
                assert cache.num_tokens == before
            with expect(EngineFault):
                language.decode(cache, outside)
            assert cache.num_tokens == before
            token_id = self.token_ids(1)[0]
            self.assert_same(language.decode(cache, token_id), self.continue_prompt(language, token_id))
            cache.close()

    def test_contract_grafted_entries_are_those_of_the_donor(self) -> None:
        """Behind the same beginning they are what would have been computed, and both caches go their own ways."""
        with self.open_language() as language:
            a, b = self.token_ids(2)
            expected_a, expected_b = (self.continue_prompt(language, token_id) for token_id in (a, b))
            prompt = self.make_prompt(language)
            donor, cache = language.new_cache(), language.new_cache()
            self.prefill(language, donor, [*prompt, TextChunk((b,), 13)])
            stop = donor.num_tokens - 1
            for start in (0, prompt[0].num_tokens, stop - 1, stop):  # nothing, text, text and a picture, all
                cache.trim(0)
                self._take_beginning(language, cache, start)
                _graftable(cache).graft(donor, start, stop)
                assert (cache.num_tokens, cache.next_position) == (stop, stop)
                assert donor.num_tokens == stop + 1
                self.assert_same(language.decode(cache, a), expected_a)
            donor.trim(stop)
            self.assert_same(language.decode(donor, b), expected_b)
            cache.trim(stop)
            donor.close()
            self.assert_same(language.decode(cache, b), expected_b)
            cache.close()

    def test_contract_grafted_entries_behind_another_beginning_are_still_those_of_the_donor(self) -> None:
        """What stands before them is the cache's own, and stays it when the donor goes on, is trimmed or closed."""
        with self.open_language() as language:
            prompt = self.make_prompt(language)
            first, token_id = prompt[0], self.token_ids(1)[0]
            assert isinstance(first, TextChunk)
            start, stop = first.num_tokens, sum(part.num_tokens for part in prompt)
            donor, cache = language.new_cache(), language.new_cache()
            self.prefill(language, donor, prompt)
            self.prefill(language, cache, [TextChunk(tuple(token + 1 for token in first.token_ids), 0)])
            _graftable(cache).graft(donor, start, stop)
            twin = cache.fork()
            expected = language.decode(twin, token_id)
            twin.close()
            assert np.abs(expected - self.continue_prompt(language, token_id)).max() > 0
            donor.trim(1)
            self.prefill(language, donor, [TextChunk(self.token_ids(stop), 1)])
            donor.close()
            self.assert_same(language.decode(cache, token_id), expected)
            cache.trim(start)  # the beginning alone
            found = self.prefill(language, cache, prompt[1:])
            fresh = language.new_cache()
            changed = [TextChunk(tuple(token + 1 for token in first.token_ids), 0), *prompt[1:]]
            self.assert_same(found, self.prefill(language, fresh, changed))
            fresh.close()
            cache.close()

    def test_contract_what_cannot_be_grafted_is_refused_and_changes_nothing(self) -> None:
        """Another place, entries that are not there, another model and closed caches."""
        with self.open_language() as language, self.open_language() as other:
            prompt = self.make_prompt(language)
            donor, cache, stranger = language.new_cache(), language.new_cache(), other.new_cache()
            self.prefill(language, donor, prompt)
            self.prefill(other, stranger, prompt)
            stop = donor.num_tokens
            self.prefill(language, cache, prompt[:1])
            start = cache.num_tokens
            graft = _graftable(cache).graft
            for place, end in ((start - 1, stop), (start + 1, stop), (0, stop), (start, stop + 1), (start, start - 1)):
                with expect(ValueError):
                    graft(donor, place, end)
            with expect(ValueError):
                graft(cache, start, start + 1)
            with expect(ValueError):
                graft(stranger, start, stop)
            graft(donor, start, start)
            assert (cache.num_tokens, donor.num_tokens, stranger.num_tokens) == (start, stop, stop)
            stranger.close()
            token_id = self.token_ids(1)[0]
            self.prefill(language, cache, prompt[1:])
            self.assert_same(language.decode(cache, token_id), self.continue_prompt(language, token_id))
            cache.trim(start)
            donor.close()
            with expect(EngineFault):
                graft(donor, start, stop)
            assert cache.num_tokens == start
            cache.close()
            with expect(EngineFault):
                graft(language.new_cache(), 0, 0)

    def test_contract_memory_is_counted(self) -> None:
        """`nbytes` does not shrink while entries come."""
        with self.open_language() as language:
            cache = language.new_cache()
            self.prefill(language, cache, self.make_prompt(language))
            before = cache.nbytes
            assert before > 0
            language.decode(cache, self.token_ids(1)[0])
            assert cache.nbytes >= before
            cache.close()

    def _take_beginning(self, language: LanguageModel, cache: KVCache, count: int) -> None:
        """Compute the first entries of the prompt."""
        rows = self.make_rows(language)[:count]
        if rows:
            language.prefill(cache, rows, want_logits=False)


def _graftable(cache: KVCache) -> Graftable:
    """Return a cache as one that takes entries from others; skip where the engine's do not."""
    if not isinstance(cache, Graftable):
        skip("its caches take no entries from others")
    return cache
