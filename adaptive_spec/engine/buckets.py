"""Buckets: the sizes that passes on a GPU are padded to, one captured graph for each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

LARGEST = 512  # positions of the largest captured pass; larger ones keep a GPU busy longer than launching takes


class Bucket(NamedTuple):
    """The size of one captured pass.

    Attributes
    ----------
    positions : int
        Rows, some of which may be inert.
    sequences : int
        Sequences, some of which may have no rows.
    """

    positions: int
    sequences: int

    def with_more_sequences(self) -> Iterator[Bucket]:
        """Yield it, and those for more sequences that hold what it holds, as far as each may have a row."""
        sequences = self.sequences
        while sequences < 4 * self.positions or sequences == self.sequences:
            yield Bucket(self.positions, sequences)
            sequences *= 4


class Buckets:
    """A staircase of sizes: a pass is padded to the smallest that holds it, and costs what that costs.

    Steps in positions are an eighth of the size or less from 64 on, and 8 below: fine enough that padding seldom
    decides, coarse enough that all can be captured when an engine starts. Sequences are padded to powers of four,
    since their number sets over how many programs the keys of each are split, and little else.

    Attributes
    ----------
    positions : tuple of int
        The sizes, rising.
    """

    def __init__(self) -> None:
        self.positions = _staircase(LARGEST)

    @property
    def largest(self) -> Bucket:
        """The largest captured pass, of as many sequences as positions."""
        return Bucket(self.positions[-1], _power_of_four(self.positions[-1]))

    def fitting(self, positions: int, sequences: int) -> Bucket | None:
        """The smallest bucket that holds a pass; None if none does, or it has no rows."""
        if not 0 < positions <= self.positions[-1]:
            return None
        return Bucket(self.positions[bisect_left(self.positions, positions)], _power_of_four(sequences))

    def decoding(self, most_sequences: int, max_depth: int) -> list[Bucket]:
        """Every bucket that a pass of decoding sequences can need, the largest first.

        Parameters
        ----------
        most_sequences, max_depth : int
            Sequences of a step, and drafts of each.
        """
        most = most_sequences * (max_depth + 1)
        found: dict[Bucket, None] = {}
        below = 0
        for positions in self.positions:
            # A pass of this size has more rows than the next smaller one holds, in rows of 1 to K + 1 a sequence.
            fewest = -(-(below + 1) // (max_depth + 1))
            sequences = _power_of_four(fewest)
            while fewest <= most_sequences and below < most:
                found[Bucket(positions, sequences)] = None
                if sequences >= min(positions, most_sequences):
                    break
                sequences *= 4
            below = positions
        return sorted(found, reverse=True)


def _staircase(most: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 16, 24, ... 64, 72, ..., then steps of an eighth or less, up to the first that is `most` or more."""
    sizes = [1]
    while sizes[-1] < most:
        last = sizes[-1]
        sizes.append(2 * last if last < 8 else last + max(8, 1 << (last.bit_length() - 4)))
    return tuple(sizes)


def _power_of_four(n: int) -> int:
    return 1 << (max(n - 1, 0).bit_length() + 1) // 2 * 2
