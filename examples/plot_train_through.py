"""
Training through the transform
==============================

A layer without parameters can be trained through and then removed. A small network learns an embedding of sketches
with a prototype loss, with the transform in the loop and without; each is then tested with and without it.
"""

# %%
# Train on thirty classes, test on the other twenty.
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from bpa import BPA
from bpa.data import embedded_sketches

sketches = embedded_sketches()
x, labels = torch.from_numpy(sketches.features), sketches.labels
WAY, SHOT, QUERY = 5, 1, 5


def episode(classes: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
    """Features of one task, (WAY, SHOT + QUERY, d)."""
    ways = rng.choice(classes, WAY, replace=False)
    items = [rng.choice(np.flatnonzero(labels == c), SHOT + QUERY, replace=False) for c in ways]
    return x[torch.from_numpy(np.stack(items))]


def logits(embedded: torch.Tensor, transform: nn.Module) -> torch.Tensor:
    """Negative squared distances of queries to class means, after transforming the whole task."""
    w = transform(embedded.flatten(0, 1)).unflatten(0, (WAY, SHOT + QUERY))
    prototypes, queries = w[:, :SHOT].mean(dim=1), w[:, SHOT:].flatten(0, 1)
    return -torch.cdist(queries, prototypes).square()


target = torch.arange(WAY).repeat_interleave(QUERY)
unit, bpa = nn.Module(), BPA(reg=0.1)
unit.forward = lambda rows: nn.functional.normalize(rows, dim=-1)


def train(transform: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    network, rng = nn.Sequential(nn.Linear(1280, 64)), np.random.default_rng(0)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(250):
        loss = nn.functional.cross_entropy(
            8 * logits(network(episode(np.arange(30), rng)), transform), target
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network


@torch.no_grad()
def test(network: nn.Module, transform: nn.Module) -> np.ndarray:
    rng = np.random.default_rng(1)
    tasks = (episode(np.arange(30, 50), rng) for _ in range(300))
    return np.array([(logits(network(t), transform).argmax(1) == target).float().mean() for t in tasks])


# %%
# Inserting the layer changes no parameter, so weights move freely between the two.
accuracy = {}
for trained, inside in (("without", unit), ("with", bpa)):
    network = train(inside)
    for used, outside in (("without", unit), ("with", bpa)):
        accuracy[f"trained {trained}, used {used}"] = 100 * test(network, outside)
for name, values in accuracy.items():
    print(f"{name}: {values.mean():.1f} ± {1.96 * values.std(ddof=1) / len(values) ** 0.5:.1f}")
assert list(bpa.state_dict()) == []
assert min(values.mean() for values in accuracy.values()) > 30  # chance is 20

# %%
# What the transform is worth depends on both halves.
figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
half = [1.96 * v.std(ddof=1) / len(v) ** 0.5 for v in accuracy.values()]
axis.barh(list(accuracy), [v.mean() for v in accuracy.values()], xerr=half)
axis.set(xlabel="5-way 1-shot accuracy on unseen classes, %", xlim=(30, None))
plt.show()
