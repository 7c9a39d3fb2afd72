"""Roster: the requests of a step, and what does not change while they run, gathered once."""

from __future__ import annotations

from dataclasses import dataclass

from adaptive_spec.step import BoolArray, FloatArray, IntArray


@dataclass(slots=True, eq=False)
class Roster:
    """Some live requests, in the order in which vLLM has them.

    Steps carry the same requests again and again. Their roster is the same object for as long as they do, so that
    nothing of this is gathered, and no id looked up, in most steps.

    Attributes
    ----------
    ids : list of str, length N
    row : int array, shape (N,)
        The controller's rows.
    stamp : int array, shape (N,)
        Tells the request of a row from the row's later ones.
    prompt : int array, shape (N,)
        Tokens of the prompt.
    before_last : int array, shape (N,)
        Tokens that the request may produce in all, but for the last one, which is no draft.
    weight : float array, shape (N,)
        Worth of one token.
    adapted : bool array, shape (N,)
        Whether the plugin gives it its depth.
    prompt_tokens : int
        Sum of the prompts.
    version : int
        Of the tables that it was gathered from; while it is theirs, all of these requests live and none began anew.
    decoding : bool
        Whether all of them are known to decode, which holds as long as the version does.
    """

    ids: list[str]
    row: IntArray
    stamp: IntArray
    prompt: IntArray
    before_last: IntArray
    weight: FloatArray
    adapted: BoolArray
    prompt_tokens: int
    version: int
    decoding: bool = False

    def __len__(self) -> int:
        return len(self.ids)
