"""Deployments that have counted some steps, and what is scraped of them."""

from __future__ import annotations

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from world import World

from adaptive_spec.config import TuningConfig
from adaptive_spec.cost import Online, Profile
from adaptive_spec.deployment import make_controller
from adaptive_spec.metrics import PREFIX, register
from adaptive_spec.upkeep import Upkeep

CURVE = Profile([1, 8, 16, 32, 64, 128], [0.036, 0.041, 0.050, 0.067, 0.114, 0.199], interpolation="linear")
K = 4


def deploy(rank: int = 0, steps: int = 120, seed: int = 1, **tuning) -> Upkeep:
    """A deployment that has served some steps, counted as an engine would."""
    config = TuningConfig.model_validate({"max_depth": K, **tuning})
    world = World(5, CURVE, np.array([0.8, 0.7, 0.7, 0.6]), seed=seed)
    controller = make_controller(config, cost=Online(CURVE), evidence=["age"], clock=world.clock)
    upkeep = Upkeep(controller, config, model_name="tiny", rank=rank)
    observe, plan = controller.observe, controller.plan

    def counted_plan(view):
        decision = plan(view)
        upkeep.counts.count_decision(decision, 3e-4)
        return decision

    def counted_observe(outcome):
        upkeep.counts.count_outcome(outcome.drafted, outcome.verified, outcome.accepted)
        observe(outcome)

    controller.plan, controller.observe = counted_plan, counted_observe
    if steps:
        world.run(controller, steps)
    del controller.plan, controller.observe
    return upkeep


def samples(text: str | bytes) -> dict[tuple[str, frozenset], float]:
    """Every sample of an exposition, by name and labels; each family may come only once."""
    text = text if isinstance(text, str) else text.decode()
    found, families = {}, []
    for family in text_string_to_metric_families(text):
        families.append(family.name)
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    assert len(set(families)) == len(families)
    return found


def scrape(*deployments: Upkeep) -> dict[tuple[str, frozenset], float]:
    registry = CollectorRegistry()
    for deployment in deployments:
        register(deployment, registry)
    return samples(generate_latest(registry))


def value(found: dict, name: str, **labels) -> float:
    labels = {"model_name": "tiny", "engine": "0", **{key: str(word) for key, word in labels.items()}}
    return found[PREFIX + name, frozenset(labels.items())]
