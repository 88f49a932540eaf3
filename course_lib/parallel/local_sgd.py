"""Local SGD: each rank takes some steps alone, then all ranks average their weights.

    rank 0   step  step  step  step ┐          ┌ step  step …
                                    ├ average ─┤                one Allreduce per `period` steps
    rank 1   step  step  step  step ┘          └ step  step …

A data-parallel step sums gradients, so the ranks communicate in every step. Here each rank updates its own
weights with its own gradients, and the replicas drift apart until the next average. The steps from one
average to the next are the **communication period**. With a period of 1 and SGD it equals data parallelism up
to rounding, also with momentum: the average of the updated weights is the update with the average gradient.
With a longer period the ranks send less, but each update sees only one shard.

**The optimizer's state is averaged, too.** Momentum adds up past gradients, here those of one rank's shards.
If only the weights were averaged, each rank would continue in the direction of its own past gradients (Yu,
Jin & Yang 2019). With Adam, even a period of 1 differs from data parallelism: its update is not a linear
function of the gradient.

The average is weighted by the samples each rank has seen since the last one, so a rank without samples does
not count, if its weights are finite.

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

    All ranks start from equal weights and take the same number of steps. Between averages the replicas
    differ: call `average()` before you evaluate or save. Weights and optimizer state are float32 or float64,
    all of one dtype. Buffers, such as batch-norm's statistics, are not averaged: `broadcast_buffers` makes
    them equal. Not for optimizers whose state has other shapes than the weights (Adafactor, LBFGS): it would
    not be averaged.

    ValueError on all ranks if `period` is below 1, or if ranks differ in parameters or `period`.
    """

    def __init__(
        self, comm: MPI.Intracomm, model: nn.Module, loss_fn: SummedLoss, optimizer: Optimizer, *, period: int
    ) -> None:
        equal_trainable_parameters(comm, model, period=period)
        if period < 1:
            raise ValueError(f"`period` is {period}; it must be at least 1")
        self.comm, self.model, self.optimizer, self.period = comm, model, optimizer, period
        self._local_step = make_step(model, loss_fn, optimizer, self._fill_gradients)
        self._steps = self._samples = 0  # since the last average

    def step(self, batch: Batch) -> float:
        """Train on this rank's shard of a global batch; return its part of the loss of the global batch.

        The shard may be empty. The loss is measured with this rank's weights, which differ from those of
        other ranks until the next average. Every `period`-th call is collective: it averages.

        The gradient is the mean over the shard, not a part of the global one: each rank updates alone, with
        the full learning rate.
        """
        samples = len(batch.targets)
        loss = self._local_step(replace(batch, global_size=max(1, samples)))  # empty: 0 / 1, not 0 / 0
        self._steps += 1
        self._samples += samples
        if self._steps == self.period:
            self.average()
        return loss * samples / batch.global_size

    def _fill_gradients(self) -> None:
        """Where this rank does not use a weight, zeros give its optimizer the state that others have."""
        for weight in self.model.parameters():
            if weight.requires_grad and weight.grad is None:
                weight.grad = torch.zeros_like(weight)

    def average(self) -> None:
        """Replace weights and optimizer state by their average over the ranks, in place, with one Allreduce.

        Collective. Does nothing if no step was taken since the last average. ValueError on all ranks if no
        rank has trained on a sample since then.
        """
        if not self._steps:
            return
        state = self.replica_tensors()
        message = flatten([*state, state[0].new_ones(1)]).mul_(self._samples)  # the last number: the samples
        self.comm.Allreduce(MPI.IN_PLACE, message.numpy())
        if not message[-1]:
            raise ValueError(
                "no rank has trained on a sample since the last average; use batches that are not empty"
            )
        copy_back(message[:-1].div_(message[-1]), state)
        self._steps = self._samples = 0

    def replica_tensors(self) -> list[torch.Tensor]:
        """The trainable weights, and the optimizer's tensors of the shape of their weight: all are averaged.

        These are the momentum of SGD and both moments of Adam.
        """
        weights = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        state = [
            value
            for weight in weights
            for name, value in self.optimizer.state.get(weight, {}).items()
            if torch.is_tensor(value)
            and value.shape == weight.shape
            and name != "step"  # a counter, which has the shape of a weight if that is a scalar
        ]
        return [*weights, *state]
