"""An incremental index of the longest suffix of a token sequence that has occurred in it before."""

from __future__ import annotations

from collections.abc import Iterable

DEFAULT_WALK = 32


class SuffixIndex:
    """Longest matched suffix of one growing token sequence: the evidence and the engine of lookup drafting.

    A suffix automaton (Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text")
    whose states also remember where they last ended and how often. The matched suffix may overlap its
    earlier occurrence (``a a a`` matches ``a a``), and it is exact whatever the text's length: no cap.

    Work per appended token is constant, amortised over the text (at most 3 transitions are made per
    token in all), plus at most `walk` links to shorter matched suffixes. Memory is O(tokens): some
    hundred bytes a token.

    Parameters
    ----------
    tokens : iterable of int
        The text to begin with.
    walk : int
        The most matched suffixes, from the longest down, whose place and count are updated for each
        appended token (>= 1). Classes of suffixes with the same occurrences count once, so a natural
        text has some five of them; a text that repeats one token for ever has as many as tokens.
        Where there never were more than `walk`, `match_end` is the most recent occurrence and `agreement`
        is over all of them. Beyond, both are of the occurrences that were counted: `match_end` is still an
        earlier occurrence of the whole matched suffix, `matched_length` still exact.

    Raises
    ------
    ValueError
        If `walk` is below 1.

    Examples
    --------
    >>> index = SuffixIndex([5, 6, 7, 8, 5, 6])
    >>> index.matched_length, index.match_end, index.continuation(3)
    (2, 2, [7, 8, 5])
    """

    __slots__ = (
        "_count",
        "_edges",
        "_end",
        "_last",
        "_length",
        "_link",
        "_match",
        "_prefix",
        "_text",
        "_walk",
        "match_end",
        "matched_length",
    )

    matched_length: int
    """Length of the longest suffix that has an earlier occurrence; 0 if none has."""
    match_end: int
    """Index just behind that occurrence, which is where its continuation starts; the text's length if none."""

    def __init__(self, tokens: Iterable[int] = (), walk: int = DEFAULT_WALK) -> None:
        if walk < 1:
            raise ValueError(f"walk is {walk}; it must be at least 1")
        self._text: list[int] = []
        self._walk = walk
        # One entry per state. State 0 is the root, the empty suffix. The state of a whole prefix of the
        # text ("prefix state") leads to the next prefix's with the token that follows; as most of them
        # have no other transition, that one is left out and `None` stands for it. This halves the time
        # and the memory.
        self._length = [0]
        self._link = [-1]
        self._edges: list[dict[int, int] | None] = [{}]
        self._end = [0]  # where the state's suffixes last ended
        self._count = [0]  # how often they ended
        self._prefix = [0]  # the state of each prefix, by its length
        self._last = 0
        self._match = 0
        self.matched_length = 0
        self.match_end = 0
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._text)

    @property
    def tokens(self) -> list[int]:
        """The text, not a copy: read it only."""
        return self._text

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        text, length, link, edges = self._text, self._length, self._link, self._edges
        ends, count, prefix, walk = self._end, self._count, self._prefix, self._walk
        last, match, match_end = self._last, self._match, self.match_end
        for token in tokens:
            current = len(length)
            text.append(token)
            size = len(text)
            prefix.append(current)
            length.append(size)
            link.append(0)
            edges.append(None)
            ends.append(size)
            count.append(1)
            # From the longest matched suffix down: those that were never followed by this token before
            # are now; the first that was shows the new longest match.
            state = link[last] if last else 0
            target: int | None = None
            while state >= 0:
                out = edges[state]
                if out is None:
                    at = length[state]
                    out = edges[state] = {text[at]: prefix[at + 1]}
                target = out.get(token)
                if target is not None:
                    break
                out[token] = current
                state = link[state]
            if target is None:
                match = 0
            elif length[target] == length[state] + 1:
                match = target
            else:
                match = self._split(state, token, target)
            link[current] = match
            last = current
            match_end = ends[match] if match else size
            state, steps = match, walk
            while state and steps:
                ends[state] = size
                count[state] += 1
                state = link[state]
                steps -= 1
        self._last, self._match, self.match_end = last, match, match_end
        self.matched_length = length[match]

    def _split(self, state: int, token: int, target: int) -> int:
        """Split off of `target` the suffixes that now also end elsewhere, and return their new state."""
        length, link, edges = self._length, self._link, self._edges
        split = len(length)
        out = edges[target]
        if out is None:
            at = length[target]
            out = {self._text[at]: self._prefix[at + 1]}
        else:
            out = out.copy()
        length.append(length[state] + 1)
        link.append(link[target])
        edges.append(out)
        self._end.append(self._end[target])
        self._count.append(self._count[target])
        link[target] = split
        while state >= 0:
            back = edges[state]
            # A bare prefix state leads to a prefix that is shorter than the split: nothing to redirect.
            if back is None or back.get(token) != target:
                break
            back[token] = split
            state = link[state]
        return split

    @property
    def agreement(self) -> float:
        """Share of the earlier occurrences of the matched suffix that continue with the proposed token.

        In (0, 1]; 0 if nothing matched. The proposed token is the first of :meth:`continuation`. O(1).
        """
        if not self._match:
            return 0.0
        out = self._edges[self._match]
        if out is None:  # it was never followed by anything else
            return 1.0
        following = out[self._text[self.match_end]]
        # The suffix at the end of the text is counted too and has no continuation yet.
        return min(1.0, self._count[following] / (self._count[self._match] - 1))

    def continuation(self, n: int) -> list[int]:
        """Propose the next `n` tokens: what followed the matched suffix where it last occurred.

        Where the copy runs into the end of the text it goes on with its own beginning, so a periodic
        text is continued periodically and there are always `n` tokens; none if nothing matched.
        """
        if not self._match or n <= 0:
            return []
        start = self.match_end
        copy = self._text[start : start + n]
        while len(copy) < n:
            copy += copy[: n - len(copy)]
        return copy
