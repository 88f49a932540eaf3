"""Pipelines, on as many ranks as this session has, held to one process that trains on the whole batch.

What is often done wrong is told from it in test_strategies.py.
"""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.fast import pipeline as fast
from course_lib.parallel.gems import place_replicas, sum_replicas
from course_lib.parallel.pipeline import (
    Recomputed,
    StepResult,
    layer_flops,
    make_pipeline_step,
    run_schedule,
    split_batch,
    split_layers,
)
from course_lib.theory.schedules import (
    Action,
    Schedule,
    gems_mast,
    gems_master,
    gpipe,
    interleaved_one_f_one_b,
    naive,
    one_f_one_b,
    peak_activations,
)
from course_lib.training.kept import SavedBytes
from course_lib.training.layers import Sleep, with_repeatable_dropout
from course_lib.training.loop import Batch, make_step, summed_cross_entropy

CLOSE = {"rtol": 0.0, "atol": 1e-10}
MICROBATCHES = [1, 3, 8]
SCHEDULES = [naive, gpipe, one_f_one_b]
Run = Callable[..., StepResult]
RUNS = {"plain": run_schedule, "fast": fast.run_schedule}
plain_and_fast = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


def layers() -> nn.Sequential:
    """Eight layers, so that every session can cut them into two stages per rank."""
    torch.manual_seed(5)
    found: list[nn.Module] = [nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Flatten()]
    found += [nn.Linear(75, 9), nn.Tanh(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 4)]
    return nn.Sequential(*found).double()


def batches(samples: int = 11) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(3, samples, 1, 5, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (3, samples), generator=generator)
    return [Batch(x, y, samples) for x, y in zip(images, labels, strict=True)]


def one_process(model: nn.Sequential, batch: Batch) -> float:
    loss = F.cross_entropy(model(batch.inputs), batch.targets)
    loss.backward()
    return loss.item()


def stages_of(
    comm: MPI.Intracomm, schedule: Schedule, model: nn.Sequential
) -> dict[tuple[int, int], nn.Module]:
    count = 1 + max(action.stage for actions in schedule for action in actions)
    stages = split_layers(copy.deepcopy(model), count)
    return {(0, action.stage): stages[action.stage] for action in schedule[comm.rank]}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer that also takes a stage without parameters."""
    return torch.optim.SGD([*model.parameters()] or [torch.zeros(1)], lr=0.1, momentum=0.9)


def equal_to_whole(
    comm: MPI.Intracomm,
    schedule: Schedule,
    microbatches: int,
    run: Run,
) -> bool:
    """Train three steps both ways; whether losses, every gradient and the weights agree."""
    whole = layers()
    modules = stages_of(comm, schedule, whole)
    stages = split_layers(whole, 1 + max(a.stage for actions in schedule for a in actions))
    mine = nn.ModuleList(modules.values())
    theirs = nn.ModuleList(stages[stage] for _, stage in modules)
    optimizers = [sgd(model) for model in (mine, whole)]
    agree = True
    for batch in batches():
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = one_process(whole, batch)
        parts = split_batch(batch, microbatches)
        step = run(comm, schedule, modules, summed_cross_entropy, parts)
        agree &= abs(comm.allreduce(step.loss) - expected) < 1e-10
        agree &= step.peak_activations == peak_activations(schedule[comm.rank])
        agree &= all_close([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()])
        for optimizer in optimizers:
            optimizer.step()
    return agree and all_close(list(mine.parameters()), list(theirs.parameters()))


def all_close(ours: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(ours) == len(expected) and all(
        torch.allclose(mine, other, **CLOSE) for mine, other in zip(ours, expected, strict=True)
    )


@plain_and_fast
@pytest.mark.parametrize("microbatches", MICROBATCHES)
@pytest.mark.parametrize("make", SCHEDULES)
def test_a_pipeline_equals_one_process(
    comm: MPI.Intracomm, make: Callable[[int, int], Schedule], microbatches: int, run: Run
) -> None:
    assert equal_to_whole(comm, make(comm.size, microbatches), microbatches, run)


@plain_and_fast
@pytest.mark.parametrize("groups", [1, 2])
def test_an_interleaved_pipeline_equals_one_process(comm: MPI.Intracomm, groups: int, run: Run) -> None:
    microbatches = groups * comm.size
    schedule = interleaved_one_f_one_b(comm.size, microbatches, chunks=2)
    assert equal_to_whole(comm, schedule, microbatches, run)


def test_large_activations_do_not_block(comm: MPI.Intracomm) -> None:
    schedule = one_f_one_b(comm.size, 4)
    inputs, targets = torch.ones(4, 500_000), torch.zeros(4, dtype=torch.long)
    modules = {(0, comm.rank): Sleep(0, 0)}
    step = run_schedule(
        comm, schedule, modules, lambda out, _: out.sum() * 0, split_batch(Batch(inputs, targets, 4), 4)
    )
    assert step.loss == 0


def test_a_schedule_for_other_ranks_or_microbatches_is_refused(comm: MPI.Intracomm) -> None:
    parts, modules = split_batch(batches()[0], 2), {(0, comm.rank): nn.Identity()}
    with pytest.raises(ValueError, match=f"a schedule of {comm.size + 1} ranks cannot run on {comm.size}"):
        run_schedule(comm, gpipe(comm.size + 1, 2), modules, summed_cross_entropy, parts)
    with pytest.raises(ValueError, match="has 3 micro-batches and got 2"):
        run_schedule(comm, gpipe(comm.size, 3), modules, summed_cross_entropy, parts)


def test_a_rank_without_its_module_is_named_on_every_rank(comm: MPI.Intracomm) -> None:
    modules = {} if comm.rank == comm.size - 1 else {(0, comm.rank): nn.Identity()}
    with pytest.raises(ValueError, match=rf"rank {comm.size - 1} has no module for \(replica, stage\)"):
        run_schedule(comm, gpipe(comm.size, 1), modules, summed_cross_entropy, split_batch(batches()[0], 1))


@plain_and_fast
def test_a_schedule_that_lacks_an_action_is_refused_on_every_rank(comm: MPI.Intracomm, run: Run) -> None:
    """Without the last backward of stage 0, its gradient would be sent and never received."""
    schedule = interleaved_one_f_one_b(comm.size, comm.size, chunks=2)
    modules = stages_of(comm, schedule, layers())
    schedule[0].remove(Action("B", 0, comm.size - 1))
    parts = split_batch(batches()[0], comm.size)
    with pytest.raises(ValueError, match=f"nowhere B{comm.size - 1} of stage 0"):
        run(comm, schedule, modules, summed_cross_entropy, parts)


def test_gradients_of_complex_activations_return_to_the_stages_before(comm: MPI.Intracomm) -> None:
    torch.manual_seed(0)
    whole = [nn.Linear(3, 3, dtype=torch.complex128) for _ in range(comm.size)]
    inputs, targets = torch.randn(4, 3, dtype=torch.complex128), torch.zeros(4, dtype=torch.long)
    copies = copy.deepcopy(whole)

    def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.conj() * outputs).real.sum()

    (loss_of(nn.Sequential(*copies)(inputs), targets) / 4).backward()
    parts = split_batch(Batch(inputs, targets, 4), 2)
    run_schedule(comm, one_f_one_b(comm.size, 2), {(0, comm.rank): whole[comm.rank]}, loss_of, parts)
    ours, theirs = whole[comm.rank].weight.grad, copies[comm.rank].weight.grad
    assert ours is not None and theirs is not None and torch.allclose(ours, theirs)


def test_a_step_of_two_replicas_is_refused_as_nobody_sums_their_gradients(comm: MPI.Intracomm) -> None:
    modules = place_replicas(comm, split_layers(layers(), comm.size))
    optimizer = sgd(nn.ModuleList(modules.values()))
    with pytest.raises(ValueError, match="2 replicas needs the sum of their gradients before the update"):
        make_pipeline_step(comm, gems_mast(comm.size), modules, summed_cross_entropy, optimizer)


def test_more_tags_than_mpi_has_are_refused_on_every_rank(comm: MPI.Intracomm) -> None:
    schedule = [[replace(a, replica=2**31) for a in actions] for actions in gpipe(comm.size, 1)]
    modules = {(2**31, comm.rank): nn.Identity()}
    with pytest.raises(ValueError, match=r"needs \d+ tags, MPI has \d+; use fewer micro-batches"):
        run_schedule(comm, schedule, modules, summed_cross_entropy, split_batch(batches()[0], 1))


# ---------------------------------------------------------------- all sorts of layers


def assorted() -> nn.Sequential:
    """Tokens (B, 3) that pass a stage as integers, batch-norm, dropout, and layers that work in place."""
    torch.manual_seed(7)
    norms = nn.Sequential(nn.Linear(12, 10), nn.BatchNorm1d(10), nn.ReLU(inplace=True))
    found = [nn.Flatten(), nn.Embedding(11, 4), nn.Flatten(), norms, nn.Dropout(0.3)]
    found += [nn.Sequential(nn.Linear(10, 5), nn.LeakyReLU(0.1, inplace=True)), nn.Linear(5, 4)]
    return with_repeatable_dropout(nn.Sequential(*found).double(), seed=3)


def test_a_stage_that_would_overwrite_its_input_is_refused() -> None:
    whole = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3)))
    with pytest.raises(ValueError, match="stage 1 would begin with ReLU"):
        split_layers(whole, 2, [1.0, 1.0])
    for first in ([], [nn.Flatten()]):  # the micro-batches of GPipe share autograd's count of writes
        with pytest.raises(ValueError, match="stage 0 would begin with ReLU"):
            split_layers(nn.Sequential(*first, *whole[1]), 1)


def test_recomputed_layers_that_overwrite_their_input_are_refused_in_training() -> None:
    layers = Recomputed(nn.Sequential(nn.LeakyReLU(0.1, inplace=True), nn.Linear(3, 3)))
    with pytest.raises(ValueError, match="the layers overwrite their inputs"):
        layers(-torch.ones(2, 3))
    with torch.inference_mode():
        assert layers(-torch.ones(2, 3)).shape == (2, 3)


def tokens(samples: int = 11) -> Batch:
    generator = torch.Generator().manual_seed(2)
    draw = torch.randint(0, 11, (samples, 3), generator=generator)
    return Batch(draw, torch.randint(0, 4, (samples,), generator=generator), samples)


@plain_and_fast
@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("make", SCHEDULES)
def test_assorted_layers_remember_and_learn_what_one_process_does(
    comm: MPI.Intracomm, make: Callable[[int, int], Schedule], recomputed: bool, run: Run
) -> None:
    whole = assorted()
    costs = [1.0] * len(whole)  # so that stages begin with all sorts of layers
    mine = split_layers(copy.deepcopy(whole), comm.size, costs)[comm.rank]
    theirs = split_layers(whole, comm.size, costs)[comm.rank]
    stage, parts = Recomputed(mine) if recomputed else mine, split_batch(tokens(), 4)
    seen: list[torch.Tensor] = []

    def loss_fn(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(outputs.detach().clone())
        return summed_cross_entropy(outputs, targets)

    for _ in range(2):
        run(comm, make(comm.size, 4), {(0, comm.rank): stage}, loss_fn, parts)
        expected = []
        for part in parts:
            expected.append(whole(part.inputs))
            (summed_cross_entropy(expected[-1], part.targets) / part.global_size).backward()
    if comm.rank == comm.size - 1:
        assert torch.allclose(torch.cat(seen[-4:]), torch.cat(expected).detach(), **CLOSE)
    for got, right in zip(mine.buffers(), theirs.buffers(), strict=True):
        assert torch.allclose(got, right, **CLOSE)
    for parameter, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert parameter.grad is not None and torch.allclose(parameter.grad, other.grad, **CLOSE)


def test_a_pipeline_step_trains_like_a_step_of_one_process(comm: MPI.Intracomm) -> None:
    whole = layers()
    mine = split_layers(copy.deepcopy(whole), comm.size)[comm.rank]
    theirs = split_layers(whole, comm.size)[comm.rank]
    schedule = one_f_one_b(comm.size, 3)
    step = make_pipeline_step(comm, schedule, {(0, comm.rank): mine}, summed_cross_entropy, sgd(mine))
    expected = make_step(whole, summed_cross_entropy, sgd(whole))
    for batch in batches():
        assert step(batch) == pytest.approx(expected(batch), abs=1e-10)
    assert all_close(list(mine.parameters()), list(theirs.parameters()))


@plain_and_fast
def test_autograd_keeps_no_more_than_the_micro_batches_that_1f1b_holds(comm: MPI.Intracomm, run: Run) -> None:
    schedule = one_f_one_b(comm.size, 16)
    batch = Batch(torch.ones(16, 100, requires_grad=True), torch.zeros(16), 16)
    stage = nn.Linear(100, 100)
    with SavedBytes(stage) as counter:
        run(comm, schedule, {(0, comm.rank): stage}, lambda out, _: out.sum(), split_batch(batch, 16))
    assert counter.live == 0
    first = comm.rank == 0
    assert counter.peak <= 4 * 100 * (16 if first else peak_activations(schedule[comm.rank]) + 1)


@plain_and_fast
def test_outputs_that_do_not_depend_on_the_inputs_send_a_gradient_of_zero(
    comm: MPI.Intracomm, run: Run
) -> None:
    class Constant(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.bias.expand(len(x), -1)

    stage = Constant(3, 3) if comm.rank == comm.size - 1 else nn.Linear(3, 3)
    batch = Batch(torch.ones(4, 3), torch.zeros(4, dtype=torch.long), 4)
    run(comm, gpipe(comm.size, 2), {(0, comm.rank): stage}, summed_cross_entropy, split_batch(batch, 2))
    assert stage.bias.grad is not None
    assert bool(stage.bias.grad.any()) == (comm.rank == comm.size - 1)


@plain_and_fast
def test_a_gradient_on_its_way_is_no_memory_that_the_next_backward_adds_to(run: Run) -> None:
    """Autograd gives `inputs` and `shift` one memory for their .grad, as both go through a view."""

    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(100_000))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1) + self.shift.view(1, -1)

    first = nn.Conv1d(1, 1, 1, bias=False)
    nn.init.ones_(first.weight)
    pairs = [("F", 0, 0), ("F", 1, 0), ("F", 0, 1), ("F", 1, 1), ("B", 1, 0), ("B", 1, 1)]
    both = [[Action(*one) for one in [*pairs, ("B", 0, 0), ("B", 0, 1)]]]  # stage 0 receives late
    parts = split_batch(Batch(torch.ones(2, 1, 100_000), torch.tensor([1.0, 10.0]), 1), 2)

    def loss_fn(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs * outputs).sum() / 2 * targets.sum()

    run(MPI.COMM_SELF, both, {(0, 0): first, (0, 1): Shift()}, loss_fn, parts)
    assert first.weight.grad is not None
    assert first.weight.grad.item() == pytest.approx(11 * 100_000, rel=1e-3)


def test_what_no_message_can_hold_is_refused() -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x

    two_stages = [[action for actions in gpipe(2, 1) for action in actions if action.kind == "F"]]
    with pytest.raises(TypeError, match="stage 0 made a tuple"):
        run_schedule(
            MPI.COMM_SELF,
            two_stages,
            {(0, 0): Pair(), (0, 1): nn.Identity()},
            summed_cross_entropy,
            [tokens()],
        )


# ---------------------------------------------------------------- GEMS


@pytest.mark.parametrize("pairs", [1, 2])
def test_gems_equals_one_process_and_its_replicas_stay_equal(comm: MPI.Intracomm, pairs: int) -> None:
    whole, schedule = layers(), gems_master(comm.size, 2 * pairs)
    modules = place_replicas(comm, split_layers(copy.deepcopy(whole), comm.size))
    stages = split_layers(whole, comm.size)
    models = [whole, *modules.values()]
    optimizers = [sgd(model) for model in models]
    for batch in batches():
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = one_process(whole, batch)
        step = run_schedule(comm, schedule, modules, summed_cross_entropy, split_batch(batch, 2 * pairs))
        assert comm.allreduce(step.loss) == pytest.approx(loss, abs=1e-10)
        sum_replicas(comm, modules)
        assert all(
            torch.allclose(flat_gradient(module), flat_gradient(stages[stage]), **CLOSE)
            for (_, stage), module in modules.items()
        )
        for optimizer in optimizers:
            optimizer.step()
    weights = comm.allgather({key: flat_weights(module) for key, module in modules.items()})
    everything = {key: flat for mine in weights for key, flat in mine.items()}
    assert all(torch.equal(everything[0, stage], everything[1, stage]) for stage in range(comm.size))


def flat_gradient(module: nn.Module) -> torch.Tensor:
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
    return torch.cat([gradient.reshape(-1) for gradient in found] or [torch.empty(0)])


def flat_weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()] or [torch.empty(0)])


def test_stages_that_do_not_fit_the_ranks_are_refused(comm: MPI.Intracomm) -> None:
    with pytest.raises(ValueError, match=f"{comm.size + 1} stages cannot be placed on {comm.size} ranks"):
        place_replicas(comm, [nn.Identity()] * (comm.size + 1))


# ---------------------------------------------------------------- cutting


def test_stages_share_the_layers_and_keep_their_order() -> None:
    model = layers()
    stages = split_layers(model, 3)
    assert [layer for stage in stages for layer in stage] == list(model)
    assert [len(stage) for stage in split_layers(model, 2, costs=[9, 1, 1, 1, 1, 1, 1, 1])] == [1, 7]


def test_more_stages_than_layers_and_more_microbatches_than_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="8 layers cannot make 9 stages"):
        split_layers(layers(), 9)
    with pytest.raises(ValueError, match="11 samples cannot make 12 micro-batches"):
        split_batch(batches()[0], 12)


def test_a_parameter_of_two_stages_is_refused() -> None:
    shared = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="stages 0 and 1 would share the parameter"):
        split_layers(nn.Sequential(shared, nn.Tanh(), shared), 2, costs=[1, 1, 1])
    assert len(split_layers(nn.Sequential(shared, nn.Tanh(), shared), 1)) == 1


def test_operations_of_layers_are_counted_and_leave_no_trace() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    before = copy.deepcopy(model.state_dict())
    assert layer_flops(model, torch.ones(4, 3)) == [1 + 2 * 4 * 3 * 5, 1, 1 + 2 * 4 * 5 * 2]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
