"""Offline comparison: acceptance traces, arrivals, machines and the simulator that brings them together."""

from adaptive_spec.replay.arrivals import ClosedConcurrency, GivenArrivals, OnOffBursts, Poisson, SwitchingConcurrency
from adaptive_spec.replay.azure_arrivals import AzureArrivals
from adaptive_spec.replay.controllers import BareController, TunedController
from adaptive_spec.replay.machine import Machine
from adaptive_spec.replay.metrics import RunMetrics, ServiceLevel
from adaptive_spec.replay.simulator import Run, Shift, Simulation, simulate
from adaptive_spec.replay.synthetic import SyntheticAcceptance
from adaptive_spec.replay.trace import Trace, TraceError

__all__ = [
    "AzureArrivals",
    "BareController",
    "ClosedConcurrency",
    "GivenArrivals",
    "Machine",
    "OnOffBursts",
    "Poisson",
    "Run",
    "RunMetrics",
    "ServiceLevel",
    "Shift",
    "Simulation",
    "SwitchingConcurrency",
    "SyntheticAcceptance",
    "Trace",
    "TraceError",
    "TunedController",
    "simulate",
]
