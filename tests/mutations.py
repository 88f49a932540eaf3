"""Each mechanism of `course_lib` broken in one place: do the quick tests notice? `python -m tests.mutations`

Every mutation is a change of text in one function. In a copy of the library and its tests, the tests named
beside it run on three ranks, as in `make test`; at least one must fail. Without a mutation all of them pass.
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
SECONDS = 180.0  # for the tests of one mutation
COPIED = ("course_lib", "tests", "conftest.py", "pyproject.toml")
# A test's own failure; or how a session ends in which one rank failed alone, or which hangs.
FAILURE = re.compile(r"^FAILED (\S+)|(\S+::.+) (?:failed here, and|is not done after)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mistake: in `file` of course_lib, `old` (which occurs once) becomes `new`; `tests` should fail."""

    mistake: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "gradients are divided by the shard's samples, not by the global batch's",
        "training/loop.py",
        "loss_fn(outputs, batch.targets.to(device)) / batch.global_size",
        "loss_fn(outputs, batch.targets.to(device)) / len(batch.targets)",
        ("tests/ranks/test_data_parallel.py",),
    ),
    Mutation(
        "broadcast skips the weights",
        "parallel/data_parallel.py",
        "for tensor in (*model.parameters(), *model.buffers()):",
        "for tensor in model.buffers():",
        ("tests/ranks/test_data_parallel.py",),
    ),
    Mutation(
        "the optimizer steps on gradients that nobody summed",
        "parallel/data_parallel.py",
        "self.collect()\n        comm.Allreduce(MPI.IN_PLACE, self.flat.numpy())",
        "self.collect()",
        ("tests/ranks/test_data_parallel.py",),
    ),
    Mutation(
        "replicas are averaged as if each had trained on as many samples",
        "parallel/local_sgd.py",
        ".mul_(self._samples)",
        ".mul_(1)",
        ("tests/ranks/test_local_sgd.py",),
    ),
    Mutation(
        "a compressed bucket is summed, and its sum not copied back",
        "parallel/gradient_buckets.py",
        "self.flat.copy_(self.message)",
        "pass",
        ("tests/ranks/test_gradient_buckets.py",),
    ),
    Mutation(
        "shards are off by one: the last of the longer ones is short",
        "theory/partition.py",
        "min(index, longer) for index",
        "min(index, max(0, longer - 1)) for index",
        ("tests/ranks/test_zero.py",),
    ),
    Mutation(
        "each rank takes the shard of its right neighbour",
        "parallel/data_parallel.py",
        "np.array_split(indices, comm.size)[comm.rank]",
        "np.array_split(indices, comm.size)[(comm.rank + 1) % comm.size]",
        ("tests/ranks/test_data_parallel.py",),
    ),
    Mutation(
        "the second turn of the ring starts one chunk too early",
        "comm/allreduce.py",
        "chunks[(rank + 1 - step) % n], chunks[(rank - step) % n]",
        "chunks[(rank - step) % n], chunks[(rank - step - 1) % n]",
        ("tests/ranks/test_allreduce.py",),
    ),
    Mutation(
        "the tensor-parallel backward lacks its all-reduce",
        "comm/regions.py",
        "return None, all_reduced(ctx.comm, gradient)",
        "return None, gradient",
        ("tests/ranks/test_tensor_parallel.py",),
    ),
    Mutation(
        "the halo stays empty",
        "comm/halo.py",
        "target.copy_(ghost)",
        "target.zero_()",
        ("tests/ranks/test_halo.py",),
    ),
    Mutation(
        "the halo's gradients do not return to their owners",
        "comm/halo.py",
        "target.add_(gradient_of_ghost)",
        "target.add_(0 * gradient_of_ghost)",
        ("tests/ranks/test_halo.py",),
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
        ("tests/ranks/test_pipeline.py",),
    ),
    Mutation(
        "a stage goes backward through the activations of the newest micro-batch",
        "parallel/pipeline.py",
        "*held.pop(key))",
        "*held.popitem()[1])",
        ("tests/ranks/test_pipeline.py",),
    ),
    Mutation(
        "ZeRO-2 keeps the gradients of the last backward pass alone",
        "parallel/zero.py",
        "bucket.gradient_shard += reduce_scatter(self.comm, flat)",
        "bucket.gradient_shard.copy_(reduce_scatter(self.comm, flat))",
        ("tests/ranks/test_zero_corners.py",),
    ),
    Mutation(
        "ZeRO's all-gather places every shard but the first one byte too low",
        "parallel/zero.py",
        "sum(counts[:rank]) for rank",
        "max(0, sum(counts[:rank]) - 1) for rank",
        ("tests/ranks/test_zero.py",),
    ),
    Mutation(
        "ring attention takes each block for that of a rank on the other side",
        "parallel/context_parallel.py",
        "owner = (comm.rank - step) % comm.size",
        "owner = (comm.rank + step) % comm.size",
        ("tests/ranks/test_context_and_expert_parallel.py",),
    ),
    Mutation(
        "every rank throws the darts of rank 0",
        "pi.py",
        ".spawn(size)[rank]",
        ".spawn(size)[0]",
        ("tests/ranks/test_pi.py",),
    ),
    Mutation(
        "a checkpoint lacks the shard of its last rank",
        "parallel/checkpoint.py",
        "file_of(rank) for rank in range(found.ranks)]",
        "file_of(rank) for rank in range(max(1, found.ranks - 1))]",
        ("tests/ranks/test_checkpoint.py",),
    ),
    Mutation(
        "a checkpoint restores every rank with the random numbers of rank 0",
        "parallel/checkpoint.py",
        "own = files[comm.rank % found.ranks]",
        "own = files[0]",
        ("tests/ranks/test_checkpoint.py",),
    ),
)


def copy_to(folder: Path) -> None:
    """Copy the library and its tests, without what is compiled."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)


def run_tests(folder: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """Exit code and output of `tests` in the copy, up to the first failure."""
    arguments = ["-m", "pytest", "-p", "pytest_timeout", "-p", "no:cacheprovider", "-q", "-x"]
    plain = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(folder), "PY_COLORS": "0"}
    with_rootdir = [*arguments, "--rootdir", str(folder), *(str(folder / test) for test in tests)]
    with contextlib.chdir(folder):
        done = run_ranks(RANKS, with_rootdir, timeout=SECONDS, environment=plain)
    return done.returncode, done.stdout + done.stderr


def who_notices(mutation: Mutation, folder: Path) -> str:
    """The test that fails with the mutation; empty when none does. The copy is afterwards as before."""
    path = folder / "course_lib" / mutation.file
    right = path.read_text()
    path.write_text(right.replace(mutation.old, mutation.new))
    try:
        code, output = run_tests(folder, mutation.tests)
    except subprocess.TimeoutExpired:
        return f"{mutation.tests} do not end within {SECONDS:g} s"
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
        code, output = run_tests(folder, tuple({test: None for each in chosen for test in each.tests}))
        if code:
            sys.exit(f"the tests fail without any mutation:\n{output[-3000:]}")
        for mutation in chosen:
            test = who_notices(mutation, folder)
            survivors += not test
            print(f"{'caught  ' if test else 'SURVIVED'}  {mutation.file}: {mutation.mistake}", flush=True)
            print(f"          {test or 'by none of ' + ', '.join(mutation.tests)}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutations are caught")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
