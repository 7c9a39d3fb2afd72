"""Drafter: what a speculative method of vLLM can do when it is asked for fewer drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Methods whose proposers take the number of drafts per step and make no more than that (vLLM 0.28 to 0.33:
# NgramProposer.propose; SpecDecodeBaseProposer.propose, which draft models, EAGLE and MTP share).
_TABLE = {"ngram": "looks drafts up in the text"}
_STEPWISE = ("draft_model", "eagle", "eagle3", "mtp")
# Methods that assert the configured number, or never hear of it.
_FIXED = {
    "suffix": "its proposer insists on the configured number",
    "medusa": "it has one head for each draft",
    "mlp_speculator": "it has one head for each draft",
    "ngram_gpu": "its proposer is compiled for the configured number",
    "custom_class": "vLLM doesn't tell a custom proposer how many drafts are wanted",
    "dflash": "it drafts all positions in one pass",
    "dspark": "it drafts all positions in one pass",
}


@dataclass(frozen=True)
class Drafter:
    """What the plugin has to know of a drafter.

    Attributes
    ----------
    method : str
        Name that vLLM gives it.
    drafts_fewer : bool
        Whether it drafts no more than the step's ``num_spec_tokens_to_schedule``. Otherwise it keeps drafting
        the configured number, and only the verification becomes shallower.
    costs_by_depth : bool
        Whether each token of depth costs a pass of its own, so that the depth must be known before it drafts.
    reason : str
        Why it is treated so.
    """

    method: str
    drafts_fewer: bool
    costs_by_depth: bool
    reason: str

    @property
    def plans_early(self) -> bool:
        """Whether depths are decided before the drafts are made; otherwise when they lie on the table.

        Drafts that cost the same whatever the depth are better decided on late: what the latest step
        brought is known by then, and how many drafts each request was offered.
        """
        return self.drafts_fewer and self.costs_by_depth

    @property
    def looks_up(self) -> bool:
        """Whether drafts are what followed the end of the text where it stood there before."""
        return self.method in _TABLE

    def evidence(self, asynchronous: bool) -> tuple[str, ...]:
        """Names of what the plugin knows of the drafts before they are made, under this scheduling."""
        # With asynchronous scheduling, the text that the drafts rest on isn't there yet when depths are decided.
        matched = ("matched_length",) if self.looks_up and not asynchronous else ()
        return (*matched, "last_accepted", "age")

    def describe(self) -> str:
        """Say in one sentence what the drafter does at a lower depth."""
        if self.drafts_fewer:
            return f"drafter {self.method} drafts no more than the deepest depth of a step ({self.reason})"
        return f"drafter {self.method} keeps drafting the configured number and only verifies less ({self.reason})"


def drafter_of(speculative: Any, data_parallel_size: int = 1, pipeline_stages: int = 1) -> Drafter:
    """Recognise the drafter of a vLLM ``SpeculativeConfig``.

    Parameters
    ----------
    speculative : vllm.config.SpeculativeConfig
        Only `method` and `parallel_drafting` are read.
    data_parallel_size : int
        With more than one rank, drafters that make passes keep the configured number: their passes may be
        collective, and ranks must never choose different numbers.
    pipeline_stages : int
        With more than one, so do they: the batch that comes next isn't the one that is drafted for, so depths can't
        be planned ahead.

    Raises
    ------
    ValueError
        If the method makes no drafts of the text.
    """
    method = str(speculative.method)
    if method == "extract_hidden_states":
        raise ValueError("method extract_hidden_states makes no drafts, so there is no depth to adapt")
    if method in _TABLE:
        return Drafter(method, True, False, _TABLE[method])
    if getattr(speculative, "parallel_drafting", False):
        return Drafter(method, False, False, "parallel drafting makes all positions in one pass")
    if method in _STEPWISE or method.endswith("_mtp"):
        if data_parallel_size > 1:
            return Drafter(method, False, False, "data-parallel ranks must draft equally deep")
        if pipeline_stages > 1:
            return Drafter(method, False, False, "with pipeline stages, depths can't be planned before the drafts")
        return Drafter(method, True, True, "it makes one pass for each token of depth")
    return Drafter(
        method, False, False, _FIXED.get(method, "the plugin doesn't know it, and leaves its drafting alone")
    )
