"""Each mechanism of `course_lib` broken in one place: do the quick tests notice? `python -m tests.mutations`

Every mutation is a change of text in one function. In a copy of the library and its tests, the test named
beside it, one of tests/ranks, must fail on three ranks, where `make test` runs it; unchanged, all pass.
Exit status 1 when a mutation survives. For some only: `python -m tests.mutations halo pipeline`.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from course.paths import ROOT
from mpi_classroom.launch import run_ranks

RANKS = 3
SECONDS, BASELINE_SECONDS = 120.0, 600.0  # for the test of one mutation; for all without a mutation
COPIED = ("course_lib", "tests", "conftest.py", "pyproject.toml")
# A test's own failure; or how a session ends in which one rank failed alone, or which hangs.
FAILURE = re.compile(
    r"^FAILED (\S+::.+?)(?: - |$)|(\S+::.+) (?:failed here, and|is not done after)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mistake: in `file` of course_lib, `old`, which occurs once, becomes `new`; `test` should fail."""

    mistake: str
    file: str
    old: str
    new: str
    test: str


MUTATIONS = (
    Mutation(
        "gradients are divided by the shard's samples, not by the global batch's",
        "training/loop.py",
        "loss_fn(outputs, batch.targets) / batch.global_size",
        "loss_fn(outputs, batch.targets) / len(batch.targets)",
        "test_data_parallel.py::test_all_ranks_together_train_as_one_process_does",
    ),
    Mutation(
        "broadcast skips the weights",
        "parallel/data_parallel.py",
        "for tensor in (*model.parameters(), *model.buffers()):",
        "for tensor in model.buffers():",
        "test_data_parallel.py::test_after_the_broadcast_all_have_the_weights_of_rank_0",
    ),
    Mutation(
        "the optimizer steps on gradients that nobody summed",
        "parallel/data_parallel.py",
        "self.collect()\n        comm.Allreduce(MPI.IN_PLACE, self.flat.numpy())",
        "self.collect()",
        "test_data_parallel.py::test_decimal_coded_gradients_show_that_everyone_contributed",
    ),
    Mutation(
        "replicas are averaged as if each had trained on as many samples",
        "parallel/local_sgd.py",
        ".mul_(self._samples)",
        ".mul_(1)",
        "test_local_sgd.py::test_a_mean_after_every_step_trains_as_one_process",
    ),
    Mutation(
        "a compressed bucket is summed, and its sum not copied back",
        "parallel/gradient_buckets.py",
        "self.flat.copy_(self.message)",
        "pass",
        "test_gradient_buckets.py::test_compressed_buckets_send_half_the_bytes_and_round",
    ),
    Mutation(
        "shards are off by one: the last of the longer ones is short",
        "theory/partition.py",
        "min(index, longer) for index",
        "min(index, max(0, longer - 1)) for index",
        "test_tensor_parallel.py::test_what_is_gathered_is_all_and_its_gradient_is_the_shards",
    ),
    Mutation(
        "each rank takes the shard of its right neighbour",
        "parallel/data_parallel.py",
        "np.array_split(indices, comm.size)[comm.rank]",
        "np.array_split(indices, comm.size)[(comm.rank + 1) % comm.size]",
        "test_data_parallel.py::test_shards_are_disjoint_ordered_and_complete",
    ),
    Mutation(
        "the second turn of the ring starts one chunk too early",
        "comm/allreduce.py",
        "chunks[(rank + 1 - step) % n], chunks[(rank - step) % n]",
        "chunks[(rank - step) % n], chunks[(rank - step - 1) % n]",
        "test_allreduce.py::test_the_ring_is_mpis_sum",
    ),
    Mutation(
        "the tensor-parallel backward lacks its all-reduce",
        "comm/regions.py",
        "return None, all_reduced(ctx.comm, gradient)",
        "return None, gradient",
        "test_tensor_parallel.py::test_a_branch_entered_by_copy_and_left_by_reduce_is_the_sum_of_all",
    ),
    Mutation(
        "the halo stays empty",
        "comm/halo.py",
        "target.copy_(ghost)",
        "target.zero_()",
        "test_halo.py::test_a_tile_gets_what_the_whole_image_has_there",
    ),
    Mutation(
        "the halo's gradients do not return to their owners",
        "comm/halo.py",
        "target.add_(gradient_of_ghost)",
        "target.add_(0 * gradient_of_ghost)",
        "test_halo.py::test_backward_is_the_transpose",
    ),
    Mutation(
        "a pipeline step uses stale weights: the gradients of the step before are applied",
        "parallel/pipeline.py",
        """
        optimizer.zero_grad()
        result = run_actions(Neighbours(comm, rank_of), actions, modules, loss_fn, split_batch(batch, count))
        optimizer.step()
""",
        """
        optimizer.step()
        optimizer.zero_grad()
        result = run_actions(Neighbours(comm, rank_of), actions, modules, loss_fn, split_batch(batch, count))
""",
        "test_pipeline.py::test_a_pipeline_step_trains_like_a_step_of_one_process",
    ),
    Mutation(
        "a stage goes backward through the activations of the newest micro-batch",
        "parallel/pipeline.py",
        "*held.pop(key))",
        "*held.popitem()[1])",
        "test_pipeline.py::test_an_interleaved_pipeline_equals_one_process",
    ),
    Mutation(
        "ZeRO-2 keeps the gradients of the last backward pass alone",
        "parallel/zero.py",
        "bucket.gradient_shard += reduce_scatter(self.comm, flat)",
        "bucket.gradient_shard.copy_(reduce_scatter(self.comm, flat))",
        "test_zero_corners.py::test_several_passes_that_do_not_reach_a_parameter",
    ),
    Mutation(
        "ZeRO's all-gather places every shard but the first one byte too low",
        "parallel/zero_shards.py",
        "sum(counts[:rank]) for rank",
        "max(0, sum(counts[:rank]) - 1) for rank",
        "test_zero.py::test_equals_one_process",
    ),
    Mutation(
        "ring attention takes each block for that of a rank on the other side",
        "parallel/context_parallel.py",
        "owner = (comm.rank - step) % comm.size",
        "owner = (comm.rank + step) % comm.size",
        "test_context_and_expert_parallel.py::test_ring_attention_is_full_attention",
    ),
    Mutation(
        "every rank throws the darts of rank 0",
        "pi.py",
        ".spawn(size)[rank]",
        ".spawn(size)[0]",
        "test_pi.py::test_all_ranks_together_are_as_far_off_as_theory_says",
    ),
    Mutation(
        "a checkpoint lacks the shard of its last rank",
        "parallel/checkpoint.py",
        "file_of(rank) for rank in range(found.ranks)]",
        "file_of(rank) for rank in range(max(1, found.ranks - 1))]",
        "test_checkpoint.py::test_on_as_many_ranks_it_goes_on_to_the_bit",
    ),
    Mutation(
        "a checkpoint restores every rank with the random numbers of rank 0",
        "parallel/checkpoint.py",
        "own = files[comm.rank % found.ranks]",
        "own = files[0]",
        "test_checkpoint.py::test_each_rank_goes_on_with_random_numbers_of_its_own",
    ),
)


def copy_to(folder: Path) -> None:
    """Copy the library and its tests, without what is compiled."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)


def run_tests(folder: Path, tests: list[str], seconds: float) -> tuple[int, str]:
    """Exit code and output of `tests` in the copy, up to the first failure; -1 after `seconds`."""
    arguments = ["-m", "pytest", "-p", "pytest_timeout", "-p", "no:cacheprovider", "-q", "-x"]
    plain = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(folder), "PY_COLORS": "0"}
    arguments += [f"tests/ranks/{test}" for test in tests]
    try:
        with contextlib.chdir(folder):
            done = run_ranks(RANKS, arguments, timeout=seconds, environment=plain)
    except subprocess.TimeoutExpired:
        return -1, f"{tests[0]} is not done after {seconds:g} s"
    return done.returncode, done.stdout + done.stderr


def who_notices(mutation: Mutation, folder: Path) -> str:
    """The test that fails with the mutation; empty when none does. The copy is afterwards as before."""
    path = folder / "course_lib" / mutation.file
    right = path.read_text()
    path.write_text(right.replace(mutation.old, mutation.new))
    try:
        code, output = run_tests(folder, [mutation.test], SECONDS)
    finally:
        path.write_text(right)
    if code == 0:
        return ""
    found = FAILURE.search(output)
    if not found:
        sys.exit(f"no test ran with the mutation «{mutation.mistake}»:\n{output[-3000:]}")
    return next(name for name in found.groups() if name)


def main(words: list[str]) -> int:
    """Try the mutations that have one of `words` in mistake or file, or all; 1 when one survives."""
    chosen = [m for m in MUTATIONS if not words or any(word in m.mistake + m.file for word in words)]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        folder = Path(name)
        copy_to(folder)
        code, output = run_tests(folder, sorted({each.test for each in chosen}), BASELINE_SECONDS)
        if code:
            sys.exit(f"the tests fail without any mutation:\n{output[-3000:]}")
        for mutation in chosen:
            test = who_notices(mutation, folder)
            survivors += not test
            print(f"{'caught  ' if test else 'SURVIVED'}  {mutation.file}: {mutation.mistake}", flush=True)
            print(f"          {test or 'by ' + mutation.test}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutations are caught")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
