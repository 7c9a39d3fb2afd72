"""BlockPool: who holds which block, and what may be reused."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from adaptive_spec.serving.blocks import BlockPool
from adaptive_spec.serving.sequence import Sequence

SIZE = 4


def sequence(id: int, tokens: list[int], max_tokens: int = 8) -> Sequence:
    return Sequence(id, list(tokens), max_tokens)


def compute(pool: BlockPool, s: Sequence) -> None:
    s.num_computed = len(s.tokens)
    pool.commit(s)


def test_a_second_sequence_reuses_full_blocks_and_computes_at_least_one_token():
    pool = BlockPool(8, SIZE)
    first, second = sequence(0, [1] * 8, 1), sequence(1, [1] * 8, 1)
    assert pool.admit(first)
    compute(pool, first)
    assert pool.admit(second)
    assert second.num_computed == 4  # not 8: the last token's logits are needed
    assert second.blocks[0] == first.blocks[0]
    assert second.blocks[1] != first.blocks[1]
    assert pool.num_free == 5


def test_the_same_tokens_behind_another_prefix_are_no_match():
    pool = BlockPool(8, SIZE)
    first = sequence(0, [1, 1, 1, 1, 2, 2, 2, 2, 3])
    pool.admit(first)
    compute(pool, first)
    other = sequence(1, [9, 9, 9, 9, 2, 2, 2, 2, 3])
    pool.admit(other)
    assert other.num_computed == 0


def test_tokens_whose_hashes_collide_are_no_match():
    collide = 2**61 - 1  # hash(n) == hash(n + 2**61 - 1) in CPython
    assert hash((0, (5,) * SIZE)) == hash((0, (5 + collide,) * SIZE))
    pool = BlockPool(8, SIZE)
    first, other = sequence(0, [5] * 9), sequence(1, [5 + collide] * 9)
    pool.admit(first)
    compute(pool, first)
    pool.admit(other)
    assert other.num_computed == 0


def test_uncomputed_tokens_never_enter_the_cache():
    pool = BlockPool(8, SIZE)
    first, second = sequence(0, [1] * 9), sequence(1, [1] * 9)
    pool.admit(first)
    first.num_computed = 7  # a block and three quarters
    pool.commit(first)
    pool.admit(second)
    assert second.num_computed == 4


def test_the_least_recently_used_prefix_is_evicted_first_and_from_its_end():
    pool = BlockPool(6, SIZE)
    old, new = sequence(0, [1] * 9, 1), sequence(1, [2] * 9, 1)
    for s in (old, new):
        pool.admit(s)
        compute(pool, s)
    pool.release(old)
    pool.release(new)
    big = sequence(2, [3] * 12, 1)  # takes the two empty blocks and one more
    assert pool.admit(big)
    probe = sequence(3, [2] * 9, 1)
    assert pool.admit(probe)
    assert probe.num_computed == 8
    pool.release(probe)
    probe = sequence(4, [1] * 9, 1)
    assert len(pool._match(probe.tokens)[1]) < 2


def test_without_prefix_caching_nothing_is_reused():
    pool = BlockPool(8, SIZE, enable_prefix_caching=False)
    first, second = sequence(0, [1] * 9), sequence(1, [1] * 9)
    pool.admit(first)
    compute(pool, first)
    pool.admit(second)
    assert second.num_computed == 0
    assert not set(first.blocks) & set(second.blocks)


def test_blocks_stay_consecutive_while_sequences_grow_side_by_side():
    pool = BlockPool(32, SIZE)
    both = [sequence(i, [i] * 6, max_tokens=40) for i in range(2)]
    for s in both:
        assert pool.admit(s)
    for length in range(7, 45):
        for s in both:
            s.tokens.append(length)
            assert pool.grow(s, length)
    for s in both:
        assert list(s.blocks) == list(range(s.blocks[0], s.blocks[0] + 11))


def test_a_claim_never_keeps_a_block_from_who_needs_it():
    pool = BlockPool(8, SIZE)
    greedy = sequence(0, [1] * 4, max_tokens=28)  # claims all eight
    pool.admit(greedy)
    other = sequence(1, [2] * 28, max_tokens=1)
    assert pool.admit(other)
    assert pool.num_free == 0
    assert len({*greedy.blocks, *other.blocks}) == 8


def test_refusals_change_nothing():
    pool = BlockPool(4, SIZE)
    s = sequence(0, [1] * 10)
    assert pool.admit(s)
    held = list(s.blocks)
    assert not pool.grow(s, 17)
    assert list(s.blocks) == held
    assert not pool.admit(sequence(1, [1] * 5))  # two more blocks
    assert pool.num_free == 1


def test_an_empty_cache_is_refused():
    with pytest.raises(ValueError, match="num_blocks=0"):
        BlockPool(0, 16)


class PoolMachine(RuleBasedStateMachine):
    """Any order of admissions, growth, commits, trims and releases, against what every block should hold."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, SIZE)
        self.held: dict[int, Sequence] = {}
        self.content: dict[int, list[int]] = {}  # block -> the text up to its end, when it was computed
        self.ids = 0

    @rule(length=st.integers(1, 20), data=st.data(), spare=st.integers(0, 2))
    def admit(self, length, data, spare):
        tokens = data.draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
        s = sequence(self.ids, tokens, max_tokens=data.draw(st.integers(1, 12)))
        self.ids += 1
        free = self.pool.num_free
        if self.pool.admit(s, spare):
            assert s.num_computed < len(tokens)
            for i, block in enumerate(s.blocks[: s.num_computed // SIZE]):
                assert self.content[block] == tokens[: (i + 1) * SIZE]
            assert self.pool.num_free >= spare
            self.held[s.id] = s
        else:
            assert self.pool.num_free == free
            assert not s.blocks

    @precondition(lambda self: self.held)
    @rule(data=st.data(), extra=st.integers(1, 9), drafts=st.integers(0, 9))
    def advance(self, data, extra, drafts):
        s = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        if not self.pool.grow(s, len(s.tokens) + extra + drafts):
            return
        s.tokens.extend(data.draw(st.lists(st.integers(0, 1), min_size=extra, max_size=extra)))
        shared = [b for t in self.held.values() if t is not s for b in t.blocks]
        for i in range(s.num_computed // SIZE, len(s.blocks)):
            assert s.blocks[i] not in shared  # nobody else's block is ever written
            self.content[s.blocks[i]] = s.tokens[: (i + 1) * SIZE]
        s.num_computed = len(s.tokens) - 1
        self.pool.commit(s)
        self.pool.trim(s)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        s = self.held.pop(data.draw(st.sampled_from(sorted(self.held))))
        self.pool.release(s)
        assert not s.blocks

    @invariant()
    def references_match_the_holders(self):
        count = [0] * self.pool.num_blocks
        for s in self.held.values():
            assert len(set(s.blocks)) == len(s.blocks)
            for block in s.blocks:
                count[block] += 1
        assert self.pool._references.tolist() == count
        assert self.pool.num_free == count.count(0)
        assert len(self.pool._cache) == sum(entry is not None for entry in self.pool._entry)

    def teardown(self):
        for s in self.held.values():
            self.pool.release(s)
        assert self.pool.num_free == self.pool.num_blocks
        assert (self.pool._claim == -1).all()


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
