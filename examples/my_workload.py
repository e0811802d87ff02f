"""A workload of your own: `murmurate up --workload examples/my_workload.py:Spirals`.

Any class with these four attributes and five methods will do. There is nothing to inherit, and
`murmurate.workloads` is only needed for what is convenient here: the split and `Evaluation`.
"""

import torch
from torch import nn

from murmurate.workloads import Evaluation, split


def spirals(points, seed):
    """Points on three spiral arms; which arm is the label."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (points,), generator=generator)
    radius = torch.rand(points, generator=generator)
    angle = 3 * radius + labels * 2.094 + 0.1 * torch.randn(points, generator=generator)
    return torch.stack((radius * angle.cos(), radius * angle.sin()), 1), labels


class Spirals:
    name = "spirals"
    batch_size = 32
    lr = 0.1
    samples = 100_000  # the whole swarm's, then the run ends

    def __init__(self):  # with a parameter `data`, it would get what `--data` says
        self.x, self.y = spirals(3000, seed=0)  # the same on every peer
        self.test_x, self.test_y = spirals(600, seed=1)

    def model(self):
        return nn.Sequential(
            nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
        )

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.lr)

    def batches(self, share):
        """Without end; `share` says which samples are this peer's: the swarm's split is kept."""
        mine = split(self.y.numpy(), share.split, share.index, share.count, share.seed)
        mine = torch.from_numpy(mine)
        generator = torch.Generator().manual_seed(share.seed + share.index)  # an order of its own
        while True:
            chosen = torch.randint(len(mine), (share.batch_size,), generator=generator)
            yield self.x[mine[chosen]], self.y[mine[chosen]]

    def loss(self, model, batch):
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)

    def evaluate(self, model):
        model.eval()
        with torch.no_grad():
            scores = model(self.test_x)
        model.train()
        loss = nn.functional.cross_entropy(scores, self.test_y)
        accuracy = (scores.argmax(1) == self.test_y).double().mean()
        return Evaluation(float(loss), float(accuracy))
