"""What holds for every test session: whose clusters it sees, its threads, what comes first; and labs."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mpi_classroom.launch import available_cores
from mpi_classroom.network import Lab, network
from mpi_classroom.network_commands import NetworkError
from mpi_classroom.network_slurm import start_slurm
from mpi_classroom.processes import SCOPE

# The ranks of one job, of Open MPI or MPICH, run one session together.
pytest_plugins = ["ranks_together"] if {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"} & os.environ.keys() else []

# A session neither sees nor ends the clusters of others on this machine; each worker of pytest-xdist is one.
os.environ[SCOPE] = uuid.uuid4().hex

# Workers share the cores (what ranks get of them is set where they are started).
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // workers)))

# The files that take longest, so that no worker is left with one of them at the end. A worker gets its next
# file when two tests are left: so the first and the fifth, with tests on one core, are not run at once.
LONGEST = (
    "test_any_processor_lessons.py",
    "test_guard.py",
    "test_exercises.py",
    "test_site.py",
    "test_any_processor.py",
    "test_take_home_programs.py",
    "test_killed_runs.py",
    "test_benchmarks.py",
    "test_journey.py",
    "test_mutants.py",
    "test_jobs.py",
    "test_learners.py",
    "test_hosts.py",
    "test_training.py",
    "test_slides.py",
    "test_nbval_is_red.py",
    "test_checkpoint_killed.py",
    "test_several_hosts.py",
    "test_cluster.py",
    "test_train_cifar_deepspeed.py",
    "test_train_mnist_ddp.py",
    "test_alone.py",
    "test_dashboard.py",
    "test_catch_up.py",
    "test_command.py",
    "test_slurm_in_a_lab.py",
    "test_network_slurm.py",
    "test_remote_in_a_lab.py",
    "test_network.py",
    "test_extracts.py",
    "test_collectives_on_more_ranks.py",
    "test_more_ranks.py",
    "test_job.py",
    *("13_deepspeed_summarization.ipynb", "12_deepspeed_on_cifar.ipynb", "14_scaling_out.ipynb"),
    *("15_when_things_fail.ipynb", "16_choose_your_strategy.ipynb", "07_ddp_on_mnist.ipynb"),
    *("06_data_parallel_by_hand.ipynb", "10_spatial_and_hybrid.ipynb", "08_pipeline_parallelism.ipynb"),
    *("11_zero_from_scratch.ipynb", "05_training_one_process.ipynb"),
)


def pytest_unconfigure() -> None:
    """Remove the shared memory that Open MPI leaves of a process that started MPI without mpiexec."""
    if hasattr(psutil.Process, "memory_maps"):  # not on macOS, where the file is elsewhere
        for path in {Path(used.path) for used in psutil.Process().memory_maps()}:
            if path.match("/dev/shm/sm_segment*"):
                path.unlink(missing_ok=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers, begin with the longest files."""
    if hasattr(config, "workerinput"):
        places = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Four nodes; skips, with the reason, where this machine cannot have them."""
    with contextlib.ExitStack() as stack:
        try:
            lab = stack.enter_context(network(4))
        except NetworkError as error:
            pytest.skip(str(error))
        yield lab


@pytest.fixture(scope="module")
def slurm_lab(lab: Lab) -> Lab:
    """The same with Slurm, likewise."""
    try:
        start_slurm(lab)
    except NetworkError as error:
        pytest.skip(str(error))
    return lab
