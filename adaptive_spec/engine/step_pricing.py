"""StepPricing: what this engine's steps cost, timed once, worked out on paper, or given."""

from __future__ import annotations

from collections.abc import Callable

from adaptive_spec.config import TuningConfig
from adaptive_spec.cost import DraftCost, ModelGeometry, Profile, StepCost
from adaptive_spec.deployment import make_cost, wants_cost
from adaptive_spec.engine.drafters.base import Drafter, ModelDrafter
from adaptive_spec.engine.measure import measure_profile
from adaptive_spec.engine.model import Model
from adaptive_spec.serving.scheduler import Scheduler


class StepPricing:
    """Makes the cost model that a tuning asks for.

    Parameters
    ----------
    model : Model
        Whose passes.
    scheduler : Scheduler
        Knows how much a step can carry.
    given : StepCost, optional
        Taken whatever the tuning says.
    clock : callable
        Seconds.
    timed : StepPricing, optional
        Of another engine on the same model: what was timed by one of them serves both.

    Attributes
    ----------
    profiles : dict of str to Profile
        What was timed of the model, by the way to read between the points.
    draft_costs : dict
        What was timed of drafters, by fingerprint and sequences.
    """

    def __init__(
        self,
        model: Model,
        scheduler: Scheduler,
        given: StepCost | None,
        clock: Callable[[], float],
        timed: StepPricing | None = None,
    ) -> None:
        self.model = model
        self.scheduler = scheduler
        self.given = given
        self.clock = clock
        self.profiles: dict[str, Profile] = {} if timed is None else timed.profiles
        self.draft_costs: dict[tuple[str, int], DraftCost] = {} if timed is None else timed.draft_costs

    def make(self, tuning: TuningConfig, drafter: Drafter) -> StepCost | None:
        """The cost model of a tuning and a drafter; None if nothing in it has use for one."""
        if self.given is not None:
            return self.given
        if not wants_cost(tuning):
            return None
        return make_cost(
            tuning.cost,
            measure=lambda: self._measure(tuning),
            geometry=geometry(self.model),
            draft_cost=self._draft_cost(drafter),
        )

    def _draft_cost(self, drafter: Drafter) -> DraftCost | None:
        """Time a drafter that runs a model, once; None for the others, whose time doesn't count."""
        if not isinstance(drafter, ModelDrafter):
            return None
        key = (drafter.fingerprint, self.scheduler.max_num_seqs)
        if key not in self.draft_costs:
            self.draft_costs[key] = drafter.measure(self.clock)
        return self.draft_costs[key]

    def _measure(self, tuning: TuningConfig) -> Profile:
        """Time this machine's passes, once for each way to read between the points."""
        interpolation = tuning.cost.interpolation
        if interpolation not in self.profiles:
            most = self.scheduler.max_num_seqs * (tuning.max_depth + 1)
            self.profiles[interpolation] = measure_profile(
                self.model,
                most_positions=min(self.scheduler.max_num_batched_tokens, most),
                block_size=self.scheduler.pool.block_size,
                interpolation=interpolation,
                clock=self.clock,
                max_depth=tuning.max_depth,
            )
        return self.profiles[interpolation]


def geometry(model: Model) -> ModelGeometry:
    """What a loaded model's passes read and compute."""
    c = model.config
    embedding = 0 if c.tie_word_embeddings else c.vocab_size * c.hidden_size
    return ModelGeometry(
        c.architecture,
        shared_parameters=model.num_parameters - embedding,
        embedding_parameters=embedding,
        kv_values_per_token=2 * c.num_layers * c.num_kv_heads * c.head_dim,
        attention_flops=4 * c.num_layers * c.num_heads * c.head_dim,
    )
