"""What a request may say of its own speculation, and who is in a canary's share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from adaptive_spec.vllm_plugin import plugin
from adaptive_spec.vllm_plugin.overrides import NONE, Overrides
from adaptive_spec.vllm_plugin.share import is_in_share


def test_nothing_said_changes_nothing() -> None:
    for extra in (None, {}, {"kv_transfer_params": {"a": 1}, "spec_depth": "deep"}):
        assert Overrides.parse(extra) is NONE
    assert (NONE.cap, NONE.pin, NONE.weight) == (None, None, 1.0)


def test_all_keys() -> None:
    said = Overrides.parse({"adaptive_spec.max_depth": 5, "adaptive_spec.depth": 3, "adaptive_spec.weight": 2})
    assert (said.cap, said.pin, said.weight) == (5, 3, 2.0)
    for true in (True, 1, "true", "True"):
        off = Overrides.parse({"adaptive_spec.off": true, "adaptive_spec.depth": 3})
        assert (off.cap, off.pin) == (0, None)
    assert Overrides.parse({"adaptive_spec.off": False}).cap is None
    assert Overrides.parse({"adaptive_spec.depth": 4.0}).pin == 4
    assert Overrides.parse({"adaptive_spec.weight": 1000}).weight == 1000.0


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"adaptive_spec.max_dpeth": 1}, "did you mean 'max_depth'"),
        ({"adaptive_spec.max_depth": -1}, "adaptive_spec.max_depth is -1; it must be a whole number from 0 up"),
        ({"adaptive_spec.max_depth": 1.5}, "whole number"),
        ({"adaptive_spec.max_depth": True}, "whole number"),
        ({"adaptive_spec.depth": "3"}, "whole number"),
        ({"adaptive_spec.depth": [3]}, "whole number"),
        ({"adaptive_spec.depth": 9}, "adaptive_spec.depth is 9; this server drafts 0 to 8 tokens"),
        ({"adaptive_spec.depth": 3, "adaptive_spec.max_depth": 2}, "over adaptive_spec.max_depth 2"),
        ({"adaptive_spec.weight": 0}, "over 0 and at most 1000"),
        ({"adaptive_spec.weight": float("nan")}, "over 0 and at most 1000"),
        ({"adaptive_spec.weight": float("inf")}, "over 0 and at most 1000"),
        ({"adaptive_spec.weight": 1e30}, "adaptive_spec.weight is 1e+30; it must be a number over 0 and at most 1000"),
        ({"adaptive_spec.weight": 1000.5}, "over 0 and at most 1000"),
        ({"adaptive_spec.weight": 10**400}, "over 0 and at most 1000"),
        ({"adaptive_spec.weight": "heavy"}, "over 0 and at most 1000"),
        ({"adaptive_spec.off": 2}, "true or false"),
        ({"adaptive_spec.off": "yes"}, "true or false"),
        ({"adaptive_spec.off": None}, "true or false"),
    ],
)
def test_what_is_wrong_is_said(extra: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match="adaptive_spec") as error:
        Overrides.parse(extra, max_depth=8)
    assert says in str(error.value)


SEPARATED = st.sampled_from(["_", "-", ".", ":", "/", " ", "", "__"])
KNOWN = ("max_depth", "depth", "weight", "off")


@st.composite
def misspelt(draw: st.DrawFn) -> tuple[str, str]:
    """A key with other separators or capitals than it should have, and the right one."""
    known = draw(st.sampled_from(KNOWN))
    first, second = draw(SEPARATED), draw(SEPARATED)
    inner = known.replace("_", draw(st.sampled_from("_-. ")))
    key = draw(st.sampled_from(["", "_", " "])) + f"adaptive{first}spec{second}{inner}"
    return draw(st.sampled_from([str.lower, str.upper, str.title, str.capitalize]))(key), f"adaptive_spec.{known}"


@given(misspelt(), st.sampled_from([{}, {"adaptive_spec.weight": 2.0}, {"kv_transfer_params": {}}]))
def test_a_key_that_only_resembles_one_of_ours_is_refused(keys: tuple[str, str], others: dict[str, object]) -> None:
    key, right = keys
    if key.startswith("adaptive_spec."):
        return
    for extra in ({key: 1, **others}, {**others, key: 1}):
        with pytest.raises(ValueError, match="is unknown") as error:
            Overrides.parse(extra)
        assert str(error.value).startswith(f"{key} is unknown; ")
        assert right in str(error.value)


@pytest.mark.parametrize(
    ("key", "right"),
    [
        ("adaptive_spec_depth", "depth"),
        ("adaptive-spec.depth", "depth"),
        ("adaptive_spec:depth", "depth"),
        ("Adaptive_spec.depth", "depth"),
        ("adaptivespec.depth", "depth"),
        ("adaptive_spec.Depth", "depth"),
        ("ADAPTIVE_SPEC_MAX_DEPTH", "max_depth"),
        ("adaptiveSpec.maxDepth", "max_depth"),
        ("adaptive_spec_weight", "weight"),
        ("adaptive_spec/off", "off"),
    ],
)
def test_the_right_key_is_named(key: str, right: str) -> None:
    with pytest.raises(ValueError, match=rf"did you mean '(adaptive_spec\.)?{right}'"):
        Overrides.parse({key: 1})


@given(st.dictionaries(st.text(max_size=30), st.none() | st.integers(), max_size=5))
def test_keys_of_others_are_none_of_ours(extra: dict[str, object]) -> None:
    assume(not any("adaptive" in key.lower() for key in extra))
    for more in ({}, {"kv_transfer_params": {"a": 1}, "max_depth": -1}, {"adaptive": 1, "spec_depth": 1}):
        assert Overrides.parse({**extra, **more}) is NONE


def test_a_pinned_depth_is_held_against_the_tunings_max_depth_too() -> None:
    def check(depth: int, **additional: object) -> None:
        config = SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=8), additional_config=additional
        )
        Overrides.parse({"adaptive_spec.depth": depth}, plugin._deepest(config))

    own = {"tuning_file": "t.yaml", "max_depth": 4}
    check(4, adaptive_spec=own)
    check(8)
    with pytest.raises(ValueError, match=r"depth is 5; this server drafts 0 to 4 tokens \(its max_depth\)"):
        check(5, adaptive_spec=own)
    with pytest.raises(ValueError, match="depth is 9; this server drafts 0 to 8 tokens"):
        check(9, adaptive_spec=own | {"max_depth": 20})


@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_holds_every_smaller_one(request_id: str, one: float, other: float) -> None:
    small, large = sorted((one, other))
    assert is_in_share(request_id, large) or not is_in_share(request_id, small)
    assert is_in_share(request_id, 1.0)
    assert not is_in_share(request_id, 0.0)


def test_a_share_takes_its_share() -> None:
    taken = sum(is_in_share(f"cmpl-{i:x}", 0.25) for i in range(4000))
    assert 900 < taken < 1100
