"""A workload on a GPU: the digits that come along, with model, batches and test on the device.

`murmurate node` leaves the device to the workload; the swarm copies what is exchanged to the CPU.
Put your own model here in the same way (docs/workloads.md says what a workload is).
"""

import torch

from murmurate.workloads import load

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Workload:
    def __init__(self):
        self.inner = load("digits")
        self.name, self.samples = "digits-gpu", self.inner.samples
        self.batch_size, self.lr = self.inner.batch_size, self.inner.lr

    def model(self):
        self.tested = self.inner.model()  # the test set lies in main memory, and is small
        return self.inner.model().to(DEVICE)

    def optimizer(self, model):
        self.inner.lr = self.lr
        return self.inner.optimizer(model)

    def batches(self, share):
        for batch in self.inner.batches(share):
            yield tuple(part.to(DEVICE, non_blocking=True) for part in batch)

    def loss(self, model, batch):
        return self.inner.loss(model, batch)

    def evaluate(self, model):
        self.tested.load_state_dict({name: part.cpu() for name, part in model.state_dict().items()})
        return self.inner.evaluate(self.tested)
