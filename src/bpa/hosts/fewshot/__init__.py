"""Few-shot hosts over features: ProtoNet, PT-MAP (also for SillNet and PT-MAP-SF features) and PMF."""

from __future__ import annotations

from bpa.hosts.fewshot._sets import Prediction
from bpa.hosts.fewshot.pmf import PMF
from bpa.hosts.fewshot.protonet import ProtoNet
from bpa.hosts.fewshot.ptmap import VARIANTS, PTMap, PTMapPrediction, PTMapSettings, PTMapVariant, powered

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
