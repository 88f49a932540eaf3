"""What lesson 14 runs in a lab: a function travels to its ranks, and they count what crosses the link."""

from contextlib import nullcontext
from statistics import median
from subprocess import CompletedProcess
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from course.lessons.l14_scaling_out import lab
from course.lessons.l14_scaling_out.lab import GRADIENTS, say_where
from course.lessons.l14_scaling_out.packed import loaded, packed
from mpi_classroom.network import network
from mpi_classroom.network_commands import NetworkError


def test_a_place_is_said_in_words() -> None:
    assert say_where(1, 2, None) == "1 node, 2 ranks per node"
    assert say_where(2, 1, None) == "2 nodes, 1 rank per node, links not limited"


def helper(array: Any, factor: int = 3) -> Any:
    return array * factor


def triples(array: Any) -> Any:
    return np.sum(helper(array))


def test_a_function_travels_with_those_that_it_calls() -> None:
    assert isinstance(triples, FunctionType)
    found = loaded(packed(triples), {"np": np})
    assert found(np.array([1, 2])) == 9
    assert found.__globals__ is not triples.__globals__


def test_all_jobs_of_the_lesson_use_both_directions_of_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, str] = {}

    class Lab:
        def run_ranks(
            self, arguments: list[str], *, timeout: float, environment: dict[str, str]
        ) -> CompletedProcess[str]:
            asked.update(environment)
            return CompletedProcess(arguments, 0, "{}\n", "")

    monkeypatch.setattr(lab, "network", lambda **_: nullcontext(Lab()))
    assert lab.measure("exchange", nodes=2, slots=1, rate="100mbit", sizes=[4], rounds=1) == {}
    assert int(asked["OMPI_MCA_btl_tcp_eager_limit"]) > GRADIENTS
    assert int(asked["OMPI_MCA_btl_tcp_max_send_size"]) > GRADIENTS
    assert asked["OMPI_MCA_coll_libnbc_iallreduce_algorithm"] == "4"


@pytest.mark.slow
def test_an_exchange_keeps_both_directions_of_a_link_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds() -> float:
        found = lab.measure("exchange", nodes=2, slots=1, rate="100mbit", sizes=[2**20], rounds=3)
        return float(median(each[0] for each in found["seconds"]))

    try:
        both = seconds()
    except NetworkError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(lab, "BOTH_WAYS", {})  # Open MPI's own settings: one direction after the other
    assert both < 0.75 * seconds()


NON_BLOCKING = """
import numpy as np
from mpi4py import MPI

comm, array, took = MPI.COMM_WORLD, np.ones(2**18, np.float32), []
for _ in range(4):
    comm.Barrier()
    begin = MPI.Wtime()
    comm.Iallreduce(MPI.IN_PLACE, array).Wait()
    took.append(comm.allreduce(MPI.Wtime() - begin, op=MPI.MAX))
if comm.rank == 0:
    print(min(took[1:]))
"""


@pytest.mark.slow
def test_a_non_blocking_all_reduce_keeps_both_directions_busy_too() -> None:
    """Open MPI's own choice for two ranks is a tree: all bytes to rank 0, and then all bytes back."""

    def seconds(environment: dict[str, str]) -> float:
        with network(nodes=2, rate="100mbit") as two:
            arguments = ["-m", "mpi4py", "-c", NON_BLOCKING]
            return float(two.run_ranks(arguments, timeout=60, environment=environment).stdout)

    algorithm = "OMPI_MCA_coll_libnbc_iallreduce_algorithm"
    try:
        both = seconds(lab.BOTH_WAYS)
    except NetworkError as error:
        pytest.skip(str(error))
    assert both < 0.75 * seconds({name: value for name, value in lab.BOTH_WAYS.items() if name != algorithm})


@pytest.mark.slow
def test_the_ranks_in_a_lab_count_what_crosses_the_link() -> None:
    try:
        found = lab.measure(
            "allreduces",
            nodes=2,
            slots=2,
            rate="1gbit",
            nbytes=400_000,
            names=lab.ALL_REDUCES,
            times=2,
        )
    except NetworkError as error:
        pytest.skip(str(error))
    assert all(each["right"] for each in found.values())
    # arrays that both nodes together send over the link, with headers
    arrays = {name: each["link_nbytes"] / 400_000 for name, each in found.items()}
    assert 3 < arrays["ring"] < 3.6 and 6 < arrays["ring, ranks in turn"] < 7.2
    assert 2 < arrays["hierarchical"] < 2.4
    # Open MPI's own hierarchical component, han, has the highest priority: it sends as little in any order
    assert 2 < arrays["MPI's own"] < 2.4 and 2 < arrays["MPI's own, ranks in turn"] < 2.4
