"""Few-shot hosts over features: ProtoNet, PT-MAP (also for SillNet and PT-MAP-SF features) and PMF."""

from __future__ import annotations

from bpa.hosts.fewshot._preparation import powered
from bpa.hosts.fewshot._sets import Prediction
from bpa.hosts.fewshot._settings import VARIANTS, PTMapSettings, PTMapVariant
from bpa.hosts.fewshot.pmf import PMF
from bpa.hosts.fewshot.protonet import ProtoNet
from bpa.hosts.fewshot.ptmap import PTMap, PTMapPrediction

__all__ = [
    "PMF",
    "VARIANTS",
    "PTMap",
    "PTMapPrediction",
    "PTMapSettings",
    "PTMapVariant",
    "Prediction",
    "ProtoNet",
    "powered",
]
