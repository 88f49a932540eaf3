"""Data parallelism in threads of one process: what torch.nn.DataParallel does, in every step, and why not.

    replicate    copy the whole model for each thread, anew in every step, because the weights have changed
    scatter      cut the batch
    compute      all threads share one Python: it runs one of them at a time, and the others only while it
                 is inside an operator
    gather       add up the replicas' gradients in the first process

DataParallel itself needs GPUs; on a CPU it calls the model as if it were not there.
"""

import copy
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from course_lib.training.loop import Batch, SummedLoss


def threaded_gradients(model: nn.Module, loss_fn: SummedLoss, batch: Batch, threads: int) -> float:
    """Leave in `model` the gradients of `batch`, computed by replicas in threads; return its loss."""

    def compute(replica: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        replica.zero_grad()
        loss = loss_fn(replica(inputs), targets) / batch.global_size
        loss.backward()
        return loss.item()

    replicas = [copy.deepcopy(model) for _ in range(threads)]
    inputs, targets = batch.inputs.tensor_split(threads), batch.targets.tensor_split(threads)
    with ThreadPoolExecutor(threads) as pool:
        losses = list(pool.map(compute, replicas, inputs, targets))
    copied = zip(*(one.parameters() for one in replicas), strict=True)
    for parameter, copies in zip(model.parameters(), copied, strict=True):
        parameter.grad = torch.stack([each.grad for each in copies if each.grad is not None]).sum(0)
    return sum(losses)
