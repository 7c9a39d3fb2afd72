"""What must hold of every run of the scenes, whatever drafts in it."""

from __future__ import annotations

from typing import Any

from vllm_scenes import SCENES


def check(result: dict[str, Any], reference: dict[str, Any], scenes: list[str] = SCENES) -> None:
    for scene in scenes:
        got = result[scene]
        if scene == "wrong override":
            continue
        wanted = reference[scene if scene in ("regex", "json") else "policy"]["texts"]
        wanted = wanted[::2] if scene == "aborts" else wanted
        assert got["texts"] == wanted, scene
        assert got["left"] == 0, scene
        if scene != "hooks failing":
            assert got["faults"] == 0, scene
            # Counted once, and as vLLM's own per-request metrics count.
            assert (got["verified"], got["our_accepted"]) == (got.get("drafted", 0), got.get("accepted", 0)), scene
        else:
            assert got["faults"] > 0
    if "off" in scenes:
        assert result["off"]["verified"] == 0
    if "mixed" in scenes:
        assert result["mixed"]["ragged"] > 0
    if "wrong override" in scenes:
        assert "adaptive_spec.depth is 99; this server drafts 0 to 4 tokens" in result["refusal"]


def check_passes(result: dict[str, Any], scenes: list[str]) -> None:
    """vLLM's draft models make one pass a step for their KV cache, drafting or not, and one for each further token."""
    for scene in scenes:
        asked = dict(result[scene]["asked"])
        assert result[scene]["draft_passes"] == sum(max(k, 1) * steps for k, steps in asked.items()), scene
