"""Local SGD: ranks train alone for some steps, and then all take the mean of their weights.

    rank 0   step  step  step  step ┐       ┌ step  step …
                                    ├ mean ─┤                   one message per `period` steps
    rank 1   step  step  step  step ┘       └ step  step …

A data-parallel step sums gradients, so the ranks have to meet in every step. Here each rank updates its own
weights with its own gradients, and the replicas drift apart until they meet again. With a period of 1 and SGD
it is data parallelism, with momentum, too: the mean of the updated weights is the update with the mean
gradient. With a longer period the ranks send less, and train differently: each update sees one shard only.

**The optimizer's state is averaged, too.** Momentum adds up past gradients, here those of one rank's shards.
A rank that goes on with its own momentum leaves the mean in a direction of its own (Yu, Jin & Yang 2019).
With Adam no period gives one process's training, as its update is no linear function of the gradient.

Each rank counts by its samples since the last mean. So a rank without samples does not count.

McDonald, Hall & Mann, "Distributed training strategies for the structured perceptron" (2010); Stich, "Local
SGD converges fast and communicates little" (2019); Yu, Jin & Yang, "On the linear speedup analysis of
communication efficient momentum SGD for distributed non-convex optimization" (2019).
"""

from dataclasses import replace

import torch
from mpi4py import MPI
from torch import nn
from torch.optim import Optimizer

from course_lib.parallel.data_parallel import equal_trainable_parameters
from course_lib.training.flat import copy_back, flatten
from course_lib.training.loop import Batch, SummedLoss, make_step


class LocalSGD:
    """Trains a replica on each rank of `comm`, and averages all replicas every `period` steps.

        broadcast_weights(comm, model)
        local = LocalSGD(comm, model, loss_fn, optimizer, period=8)
        epoch = fit(local.step, shard_batches(comm, images, labels, batches))
        local.average()

    All ranks start from equal weights and take equally many steps. Weights and optimizer state are float32 or
    float64, all of one dtype. Buffers, such as batch-norm's statistics, are not averaged: `broadcast_buffers`
    makes them equal. ValueError on all ranks for a period below 1, and for different ones.
    """

    def __init__(
        self, comm: MPI.Intracomm, model: nn.Module, loss_fn: SummedLoss, optimizer: Optimizer, *, period: int
    ) -> None:
        weights = equal_trainable_parameters(comm, model, period=period)
        if period < 1:
            raise ValueError(f"`period` is {period}; it must be at least 1")
        for weight in weights:
            if (
                weight.grad is None
            ):  # where this rank never uses a weight, a zero gradient gives its optimizer
                weight.grad = torch.zeros_like(weight)  # the state that the other ranks average
        self.comm, self.model, self.optimizer, self.period = comm, model, optimizer, period
        self._train_alone = make_step(model, loss_fn, optimizer)
        self._steps = self._samples = 0  # since the last mean

    def step(self, batch: Batch) -> float:
        """Train on this rank's shard of a global batch; return its part of the loss of the global batch.

        The gradient is the mean over the shard, which may be empty. Every `period` steps all ranks meet.
        """
        samples = len(batch.targets)
        loss = self._train_alone(replace(batch, global_size=max(1, samples)))
        self._steps += 1
        self._samples += samples
        if self._steps == self.period:
            self.average()
        return loss * samples / batch.global_size

    def average(self) -> None:
        """Give all ranks the mean of their weights and optimizer states, in place, in one Allreduce.

        Each rank counts by its samples since the last mean. Does nothing when no step was taken since then.
        ValueError on all ranks when no rank had a sample.
        """
        if not self._steps:
            return
        state = self.averaged()
        flat = flatten(state)
        message = torch.cat([flat * self._samples, flat.new_tensor([self._samples])])
        self.comm.Allreduce(MPI.IN_PLACE, message.numpy())
        if not message[-1]:
            raise ValueError("no rank had a sample since the last mean; train on batches that are not empty")
        copy_back(message[:-1] / message[-1], state)
        self._steps = self._samples = 0

    def averaged(self) -> list[torch.Tensor]:
        """What is averaged: the weights, and of the optimizer's state what has the shape of a weight."""
        weights = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        state = [
            value
            for weight in weights
            for name, value in self.optimizer.state.get(weight, {}).items()
            if torch.is_tensor(value) and value.shape == weight.shape and name != "step"
        ]
        return [*weights, *state]

    @property
    def nbytes(self) -> int:
        """Bytes that this rank contributes to a mean; the optimizer has its state after the first step."""
        averaged = self.averaged()
        return sum(tensor.nbytes for tensor in averaged) + averaged[0].element_size()  # and its samples
