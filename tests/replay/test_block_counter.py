"""The replay's block counter against the engine's pool: the same answers and the same numbers of blocks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.replay.block_counter import BlockCounter, ComputedElsewhere
from adaptive_spec.serving.blocks import BlockPool
from adaptive_spec.serving.sequence import Sequence

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["admit", "grow", "append", "trim", "release"]), st.integers(0, 4), st.integers(1, 30)),
    max_size=60,
)


@settings(deadline=None, max_examples=80)
@given(actions=ACTIONS, num_blocks=st.integers(4, 20))
def test_it_counts_as_the_engines_pool(actions, num_blocks):
    pools = BlockPool(num_blocks, 4, enable_prefix_caching=False), BlockCounter(num_blocks, 4)
    held: list[list[Sequence | None]] = [[None] * 5, [None] * 5]
    for action, i, n in actions:
        answers = []
        for pool, mine in zip(pools, held, strict=True):
            sequence = mine[i]
            answer: object = None
            if action == "admit" and sequence is None:
                sequence = Sequence(i, [0] * n, max_tokens=20)
                answer = pool.admit(sequence, spare=n % 3)
                if answer:
                    sequence.num_computed = n
                    mine[i] = sequence
            elif sequence is not None:
                if action == "grow":
                    answer = pool.grow(sequence, len(sequence.tokens) + n)
                elif action == "append":
                    if pool.grow(sequence, len(sequence.tokens) + 1):
                        sequence.tokens.append(0)
                elif action == "trim":
                    pool.trim(sequence)
                elif action == "release":
                    pool.release(sequence)
                    assert sequence.num_computed == 0
                    mine[i] = None
            answers.append(answer)
        assert answers[0] == answers[1]
        assert pools[0].num_free == pools[1].num_free
        used = [block for sequence in held[1] if sequence is not None for block in sequence.blocks]
        assert len(set(used)) == len(used) == num_blocks - pools[1].num_free
        for a, b in zip(*held, strict=True):
            assert (a is None) == (b is None)
            assert a is None or len(a.blocks) == len(b.blocks)


def test_what_was_computed_elsewhere_has_one_token_left():
    pool = ComputedElsewhere(4, 4)
    sequence = Sequence(1, [0] * 10, max_tokens=4)
    assert pool.admit(sequence)
    assert sequence.num_computed == 9
    assert not pool.admit(Sequence(2, [0] * 10, max_tokens=4))
