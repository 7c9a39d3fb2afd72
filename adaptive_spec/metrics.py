"""Prometheus metrics: what a deployment's counts say, under ``adaptive_spec:`` in vLLM's naming style.

Nothing is done per step: the collector reads a deployment's plain arrays when it is scraped. prometheus_client is
imported when metrics are first asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from adaptive_spec.step import IntArray
from adaptive_spec.step_counts import DECIDED_BY, DECISION_SECONDS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from adaptive_spec.upkeep import Upkeep

PREFIX = "adaptive_spec:"
LABELS = ("model_name", "engine")
MODES = ("on", "shadow", "off")
FAULTS = (
    "raised", "slow", "observe", "add", "not a decision", "not an array", "shape", "dtype", "negative depth",
    "over limit", "draft depth", "expectation",
)  # fmt: skip
OTHER = "other"

Samples = Iterable[tuple[tuple[str, ...], float]]


class MetricsCollector:
    """A prometheus_client collector over one or more deployments of this process.

    Every metric has the labels ``model_name`` and ``engine``; the others take few values: K positions, the reasons
    of :data:`~adaptive_spec.step_counts.DECIDED_BY`, the kinds of faults, the three modes.
    """

    def __init__(self) -> None:
        self.deployments: list[Upkeep] = []

    def describe(self) -> list[Metric]:
        """All families without samples, by which a registry sees names that clash."""
        return [family for family, _, _ in _families()]

    def collect(self) -> Iterator[Metric]:
        """Read all deployments, and yield each family once."""
        deployments = list(self.deployments)
        for family, kind, read in _families():
            for deployment in deployments:
                labels = (deployment.model_name, deployment.engine)
                for own, value in read(deployment):
                    if kind == "histogram":
                        buckets, total = value
                        family.add_metric([*labels, *own], buckets, total)
                    else:
                        family.add_metric([*labels, *own], value)
            yield family


_collectors: WeakKeyDictionary[CollectorRegistry, MetricsCollector] = WeakKeyDictionary()
_lock = threading.Lock()


def register(deployment: Upkeep, registry: CollectorRegistry) -> None:
    """Let a registry give out a deployment's metrics, beside those of others that it has.

    Raises
    ------
    ValueError
        If the registry gives out metrics of the same model name and engine.
    """
    with _lock:
        collector = _collectors.get(registry)
        if collector is None:
            collector = MetricsCollector()
            registry.register(collector)
            _collectors[registry] = collector
        for other in collector.deployments:
            if (other.model_name, other.engine) == (deployment.model_name, deployment.engine):
                raise ValueError(
                    f"metrics of model {deployment.model_name!r}, engine {deployment.engine!r}, are given out already; "
                    "give the engine another name"
                )
        collector.deployments.append(deployment)


def unregister(deployment: Upkeep, registry: CollectorRegistry) -> None:
    """Give out a deployment's metrics no more; nothing happens if they aren't."""
    with _lock:
        collector = _collectors.get(registry)
        if collector is not None and deployment in collector.deployments:
            collector.deployments.remove(deployment)


def _families() -> list[tuple[Any, str, Callable[[Upkeep], Any]]]:
    """Every family, empty; its kind; and what reads its samples off a deployment."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    return [
        (kinds[kind](PREFIX + name, text, labels=[*LABELS, *own]), kind, read)
        for kind, name, own, text, read in METRICS
    ]


def _one(read: Callable[[Upkeep], float | None]) -> Callable[[Upkeep], Samples]:
    """A single sample, or none where there is nothing to tell."""

    def samples(deployment: Upkeep) -> Samples:
        value = read(deployment)
        return [] if value is None else [((), float(value))]

    return samples


def _by(names: Sequence[str], read: Callable[[Upkeep], dict[str, int]]) -> Callable[[Upkeep], Samples]:
    """A sample for each of `names`, and one for all others together."""

    def samples(deployment: Upkeep) -> Samples:
        counts = read(deployment)
        known = [*(name for name in names if name != OTHER), OTHER]
        others = sum(count for name, count in counts.items() if name not in known)
        return [((name.replace(" ", "_"),), counts.get(name, 0) + (others if name == OTHER else 0)) for name in known]

    return samples


def _by_position(read: Callable[[Upkeep], IntArray]) -> Callable[[Upkeep], Samples]:
    return lambda deployment: [((str(k),), float(count)) for k, count in enumerate(read(deployment))]


def _depths(read: Callable[[Upkeep], IntArray]) -> Callable[[Upkeep], Any]:
    def samples(deployment: Upkeep) -> Any:
        counts = read(deployment).copy()
        total = float(counts @ np.arange(len(counts)))
        return [((), (_buckets([float(depth) for depth in range(len(counts))], [*counts.tolist(), 0]), total))]

    return samples


def _decision_seconds(deployment: Upkeep) -> Any:
    counts = deployment.counts
    return [((), (_buckets(DECISION_SECONDS, counts.seconds.tolist()), counts.total_seconds))]


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, int]]:
    """Cumulative counts by upper bound; `counts` has one more than there are bounds."""
    from prometheus_client.utils import floatToGoString

    names = [*(floatToGoString(bound) for bound in bounds), "+Inf"]  # type: ignore[no-untyped-call]
    return list(zip(names, np.cumsum(counts).tolist(), strict=True))


def _faults(deployment: Upkeep) -> Samples:
    """Faults of the policy by kind, then those that others have counted."""
    yield from _by(FAULTS, lambda d: dict(d.controller.fallback.faults))(deployment)
    yield from (((f"outside_{kind}".replace(" ", "_"),), n) for kind, n in dict(deployment.counts.faults).items())


def _modes(deployment: Upkeep) -> Samples:
    return [((mode,), float(deployment.tuning.mode == mode)) for mode in MODES]


def _requests(deployment: Upkeep) -> Samples:
    return [((name,), deployment.counts.requests[adapted]) for name, adapted in (("true", True), ("false", False))]


METRICS: list[tuple[str, str, tuple[str, ...], str, Callable[[Upkeep], Any]]] = [
    ("histogram", "depth", (), "Draft tokens that a sequence was given in a step.",
     _depths(lambda d: d.counts.depth)),
    ("histogram", "shadow_depth", (),
     "Draft tokens that a sequence would have been given, where the engine kept its own depth.",
     _depths(lambda d: d.counts.shadow_depth)),
    ("counter", "drafted_tokens", (), "Draft tokens made.", _one(lambda d: d.counts.drafted)),
    ("counter", "verified_tokens", (), "Draft tokens that the target model judged.",
     _one(lambda d: int(d.counts.verified_per_position().sum()))),
    ("counter", "accepted_tokens", (), "Draft tokens accepted.",
     _one(lambda d: int(d.counts.accepted_per_position().sum()))),
    ("counter", "wasted_tokens", (), "Draft tokens made and not accepted.", _one(lambda d: d.counts.wasted)),
    ("counter", "shadow_verified_tokens", (),
     "Draft tokens that would have been judged at the decided depth, where the engine kept its own.",
     _one(lambda d: d.counts.shadow_verified)),
    ("counter", "shadow_accepted_tokens", (),
     "Draft tokens that would have been accepted at the decided depth, where the engine kept its own.",
     _one(lambda d: d.counts.shadow_accepted)),
    ("counter", "verified_tokens_per_pos", ("position",),
     "Draft tokens judged at each position; accepted over verified is the survival to it.",
     _by_position(lambda d: d.counts.verified_per_position())),
    ("counter", "reached_tokens_per_pos", ("position",),
     "Judged draft tokens at each position whose predecessors were all accepted; accepted over reached is the "
     "acceptance there.", _by_position(lambda d: d.counts.reached_per_position())),
    ("counter", "accepted_tokens_per_pos", ("position",), "Draft tokens accepted at each position.",
     _by_position(lambda d: d.counts.accepted_per_position())),
    ("counter", "steps", ("decided_by",), "Decided steps, by what decided them.",
     _by(DECIDED_BY, lambda d: dict(d.counts.steps))),
    ("counter", "decisions", ("decided_by",), "Depths of single sequences, by what decided them.",
     _by(DECIDED_BY, lambda d: dict(d.counts.decided))),
    ("counter", "off_steps", (), "Decided steps in which no sequence was given a draft.",
     _one(lambda d: d.counts.off_steps)),
    ("counter", "explored_steps", (), "Decided steps in which a sequence was drafted deeper to learn.",
     _one(lambda d: d.counts.explored_steps)),
    ("histogram", "decision_seconds", (), "Seconds that deciding a step took.", _decision_seconds),
    ("counter", "faults", ("kind",), "Faults of the policy, and outside it, by kind.", _faults),
    ("counter", "dropped_records", (), "Outcomes and times that answered no decision.",
     _one(lambda d: sum(dict(d.controller.counts).values()))),
    ("gauge", "policy_benched", (), "1 while a faulty policy isn't asked.",
     _one(lambda d: d.controller.fallback.benched)),
    ("gauge", "guard_on", (), "1 while the guard lets sequences speculate, 0 while off was measured faster.",
     _one(lambda d: None if d.controller.guard is None else d.controller.guard.on)),
    ("counter", "guard_switches", (), "Times that the guard has switched speculation off or on.",
     _one(lambda d: None if d.controller.guard is None else d.controller.guard.switches)),
    ("gauge", "watchdog_tripped", (), "1 while drafts are hardly accepted at all.",
     _one(lambda d: None if d.controller.watchdog is None else d.controller.watchdog.tripped)),
    ("counter", "watchdog_trips", (), "Times that acceptance has collapsed.",
     _one(lambda d: None if d.controller.watchdog is None else d.controller.watchdog.trips)),
    ("gauge", "exploration_earned_tokens", (), "Worth of the tokens of which exploration is given its share.",
     _one(lambda d: None if d.controller.ledger is None else d.controller.ledger.earned)),
    ("gauge", "exploration_spent_tokens", (), "Tokens that exploration is reckoned to have cost.",
     _one(lambda d: None if d.controller.ledger is None else d.controller.ledger.spent)),
    ("counter", "requests", ("adapted",), "Requests begun, by whether their depth is adapted.", _requests),
    ("gauge", "sequences", (), "Sequences that are live.", _one(lambda d: len(d.controller))),
    ("gauge", "personal_sequences", (), "Live sequences with a depth, a cap or a weight of their own.",
     _one(lambda d: d.controller.personal)),
    ("gauge", "mode", ("mode",), "1 for the mode that is in effect.", _modes),
    ("gauge", "policy_info", ("policy",), "1 for the policy that is in effect.",
     lambda d: [((d.tuning.policy.name,), 1.0)]),
    ("gauge", "tuning_generation", (), "1 at the start, one more with every change of the settings.",
     _one(lambda d: d.generation)),
    ("counter", "tuning_rejections", (), "Edited tuning files that were refused.", _one(lambda d: d.rejections)),
    ("counter", "state_saves", (), "Times that what was learned was saved.",
     _one(lambda d: None if d.keeper is None else d.keeper.saves)),
    ("counter", "state_save_failures", (), "Times that what was learned could not be saved.",
     _one(lambda d: None if d.keeper is None else d.keeper.failures)),
    ("gauge", "state_saved_timestamp_seconds", (), "Unix time of the last saving.",
     _one(lambda d: None if d.keeper is None else d.keeper.saved_at)),
]  # fmt: skip
