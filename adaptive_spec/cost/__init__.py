"""What a step costs: measured, computed from the machine, and corrected online."""

from adaptive_spec.cost.base import StepCost
from adaptive_spec.cost.curve import CurveCost
from adaptive_spec.cost.draft import DraftCost
from adaptive_spec.cost.geometry import ModelGeometry
from adaptive_spec.cost.hardware import HARDWARE, Hardware, hardware
from adaptive_spec.cost.online import Online
from adaptive_spec.cost.profile import Profile
from adaptive_spec.cost.roofline import Roofline

__all__ = [
    "HARDWARE",
    "CurveCost",
    "DraftCost",
    "Hardware",
    "ModelGeometry",
    "Online",
    "Profile",
    "Roofline",
    "StepCost",
    "hardware",
]
