"""The sampling modes: how drafts are drawn, and by which rule they are accepted."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

SamplingMode: TypeAlias = Literal["match", "coupled", "ratio"]
SAMPLING_MODES: tuple[SamplingMode, ...] = get_args(SamplingMode)


def choose_sampling(asked: str | None, drafter: str | None, draws: bool) -> SamplingMode:
    """The mode that is asked for, or the one that suits the drafter.

    ``match``: a draft is accepted when it equals the token that the target emits there, and is the drafter's
    likeliest token. ``coupled``: the same rule, but a draft model draws with the noise that the target draws with, so
    that the two often draw the same (Daliri, Musco and Suresh 2024). In both the text never depends on the drafts.
    ``ratio``: a draft model draws with noise of its own, and a draft is accepted with the chance that the ratio of
    the two probabilities says (Leviathan, Kalman and Matias 2023; Chen et al. 2023): drafts are accepted most often,
    and the text's distribution is the target's, but which text it is depends on the depths.

    Parameters
    ----------
    asked : str or None
        None: ``coupled`` for a drafter that draws, else ``match``.
    drafter : str or None
        Name of the drafter, if there is one.
    draws : bool
        Whether it draws its drafts from a distribution.

    Raises
    ------
    ValueError
        If there is no such mode, or the drafter can't serve it.
    """
    if asked is None:
        return "coupled" if draws else "match"
    for mode in SAMPLING_MODES:
        if asked == mode:
            break
    else:
        raise ValueError(f"sampling is {asked!r}; it must be one of {', '.join(SAMPLING_MODES)}")
    if mode != "match" and not draws:
        who = "there is no drafter" if drafter is None else f"drafter {drafter!r} draws nothing"
        raise ValueError(
            f"sampling {mode!r} is for drafters that draw from a distribution, as draft_model does, and {who}; "
            "leave it out: match mode accepts drafts that are a function of the text as often as any rule can"
        )
    return mode
