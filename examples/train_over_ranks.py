"""
Train with the global batch as the set
======================================

The transform looks at the whole batch. On several ranks the batch is spread, and each rank computes its rows of W for
everybody's items together; gradients are those of one process that holds the whole batch.

    torchrun --standalone --nproc-per-node 2 examples/train_over_ranks.py      # one machine
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:PORT examples/train_over_ranks.py

Without torchrun it runs as a single rank.
"""

# %%
# A process group: gloo on processors, NCCL where there are GPUs.

import os
import tempfile
import time

import torch
import torch.distributed as dist

from bpa import balanced_affinities
from bpa.plans import sharded_affinities

alone = "RANK" not in os.environ
if alone:
    store = tempfile.mkdtemp()
    dist.init_process_group("gloo", init_method=f"file://{store}/ranks", rank=0, world_size=1)
else:
    dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

# %%
# Every rank draws its share of the batch and the same network.

generator = torch.Generator().manual_seed(rank)
labels = torch.arange(24) % 6
prototypes = torch.randn(6, 32, generator=torch.Generator().manual_seed(99))
images = prototypes[labels] + 1.5 * torch.randn(24, 32, generator=generator)
torch.manual_seed(0)
network = torch.nn.Linear(32, 16)
optimizer = torch.optim.SGD(network.parameters(), lr=0.5)

everyone = [torch.empty_like(labels) for _ in range(world)]
dist.all_gather(everyone, labels)
all_labels = torch.cat(everyone)
same = (labels[:, None] == all_labels).float()


def loss_of(affinity: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (affinity - target).square().sum() / all_labels.numel() ** 2


# %%
# A few steps: the loss is a sum over rows of W, each rank adds its rows, and gradients are summed over the ranks.

for step in range(5):
    optimizer.zero_grad()
    loss = loss_of(sharded_affinities(network(images), reg=0.2).affinity, same)
    loss.backward()
    for parameter in network.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print(f"step {step}: loss {float(total):.4f}")

# %%
# One process that holds the whole batch computes the same loss.

gathered = [torch.empty_like(images) for _ in range(world)]
dist.all_gather(gathered, images)
with torch.no_grad():
    loss = loss_of(sharded_affinities(network(images), reg=0.2).affinity, same)
    dist.all_reduce(loss)
    whole = loss_of(
        balanced_affinities(network(torch.cat(gathered)), reg=0.2),
        (all_labels[:, None] == all_labels).float(),
    )
assert abs(float(loss) - float(whole)) < 1e-6
if rank == 0:
    print(f"{world} ranks agree with one process: loss {float(whole):.6f}")
dist.destroy_process_group()
time.sleep(0.5)  # gloo's threads end after this call, and a process that leaves before them is aborted
