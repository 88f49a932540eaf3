"""The process group: torch's names for what collectives.py does.

torch calls these methods from Python (torch.distributed.all_reduce …) and from C++ (DDP, DTensor, functional
collectives), with lists of tensors and an options object. The names and forms are torch 2.13's; what other
versions call differently is beside them and at the end.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from . import collectives
from .barriers import monitored_barrier, roll_call
from .channel import Call, Channel, Refusal, create_from
from .gate import REFUSED
from .messages import Message, MessageQueue
from .work import Many, Outcome

Tensors = Sequence[torch.Tensor]
CPU = torch.device("cpu")
in_backward = torch._C._current_graph_task_id


ProcessGroup: Any = dist.ProcessGroup  # its stubs have a constructor it has not


class MPIGroup(ProcessGroup):
    """A process group whose ranks talk through an mpi4py communicator, which becomes its own."""

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def __init__(self, comm: MPI.Intracomm, store: dist.Store, seconds: float, name: str) -> None:
        super().__init__(comm.rank, comm.size)
        self._store = store
        self.channel = Channel(comm, seconds, name)
        self.post = MessageQueue(self.channel)
        self.calls: Counter[tuple[int, ...]] = Counter()  # for groups of these ranks
        self.together: list[Any] | None = None  # the works of a coalescing block
        self._name, self._desc = name, "undefined"

    # ------------------------------------------------------------------------------- who it is

    def getBackendName(self) -> str:
        return "mpi4py"

    name = _get_backend_name = getBackendName

    def getRank(self) -> int:
        return self.channel.rank

    def getSize(self) -> int:
        return self.channel.size

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [CPU]

    def _get_backend(self, device: torch.device) -> "MPIGroup":
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"the mpi4py backend has no {device}; it moves CPU tensors")
        return self

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.channel.seconds = timeout.total_seconds()

    set_timeout = _set_default_timeout

    def _set_sequence_number_for_group(self) -> None:
        """MPI counts for itself."""

    def __repr__(self) -> str:
        return f"MPIGroup(name={self._name!r}, rank={self.channel.rank}, size={self.channel.size})"

    # -------------------------------------------------------------------------------- how it runs

    def _run(self, make: Callable[..., Call], opts: Any, *arguments: Any) -> Outcome:
        """Check, then run: in the calling thread, or later when the caller may go on meanwhile.

        Inside a backward pass everything runs in the calling thread: there callbacks start collectives, and
        only one thread keeps them in the same order on all ranks.
        """
        channel = self.channel
        try:
            call = make(channel, *arguments)
        except (ValueError, TypeError) as error:
            refusal = Refusal(error)
            call = Call(REFUSED, refusal, refusal.body, [])
        later = getattr(opts, "asyncOp", True) and in_backward() < 0
        work = channel.run(call, self._seconds(opts), later)
        if self.together is not None:
            self.together.append(work)
        return work

    def _seconds(self, opts: Any) -> float:
        timeout = getattr(opts, "timeout", None)  # an options object says -1 ms for no timeout of its own
        return self.channel.seconds if timeout is None or timeout.days < 0 else timeout.total_seconds()

    # --------------------------------------------------------------------------------- reductions

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Outcome:
        return self._run(collectives.all_reduce, opts, listed(tensors), reduction(opts))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Outcome:
        return self._run(collectives.all_reduce_coalesced, opts, tensors, reduction(opts))

    def reduce(self, tensors: Tensors, opts: Any) -> Outcome:
        return self._run(collectives.reduce, opts, tensors, opts.reduceOp, opts.rootRank)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Outcome:
        return self._run(collectives.reduce_scatter, opts, outputs[0], inputs[0], reduction(opts))

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Outcome:
        return self._run(collectives.reduce_scatter_single, opts, output, tensor, reduction(opts))

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Many:
        return Many([self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])

    # ----------------------------------------------------------------------------------- movement

    def broadcast(self, tensors: Tensors, opts: Any) -> Outcome:
        root = opts if isinstance(opts, int) else opts.rootRank
        return self._run(collectives.broadcast, opts, listed(tensors), root)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Outcome:
        return self._run(collectives.all_gather, opts, outputs[0], inputs[0])

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Many:
        # torch passes one list of outputs per rank
        lists = [[output[index] for output in outputs] for index in range(len(inputs))]
        return Many([self.allgather([o], [i], opts) for o, i in zip(lists, inputs, strict=True)])

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Outcome:
        return self._run(collectives.all_gather_single, opts, output, tensor)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Many:
        return Many([self.all_gather_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Outcome:
        return self._run(collectives.gather, opts, outputs[0] if outputs else [], inputs[0], opts.rootRank)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Outcome:
        return self._run(collectives.scatter, opts, outputs[0], inputs[0] if inputs else [], opts.rootRank)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Outcome:
        return self._run(collectives.all_to_all, opts, outputs, inputs)

    def all_to_all_single(
        self, output: torch.Tensor, tensor: torch.Tensor, recvcounts: Sequence[int] | None = None,
        sendcounts: Sequence[int] | None = None, opts: Any = None,
    ) -> Outcome:  # fmt: skip
        return self._run(
            collectives.all_to_all_single, opts, output, tensor, recvcounts or [], sendcounts or []
        )

    def barrier(self, opts: Any = None) -> Outcome:
        return self._run(collectives.barrier, opts)

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Return when all ranks have come; after `timeout` (seconds) raise an error that names who has not.

        As torch.distributed.monitored_barrier, which takes the gloo backend only. `wait_all_ranks`: name
        all missing ranks, not only the first.
        """
        timeout = self.channel.seconds if timeout is None else timeout
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        monitored_barrier(self.channel, seconds, wait_all_ranks)

    def gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Outcome:
        """As gather, into the one tensor `output`; torch calls it from 2.14 on."""
        return self._run(collectives.gather_single, opts, output, tensor, opts.rootRank)

    # ----------------------------------------------------------------------------------- messages

    def send(self, tensors: Tensors, to: int, tag: int = 0) -> Message:
        return self._remember(self.post.send(collectives.only(tensors), to, tag))

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Message:
        return self._remember(self.post.receive(collectives.only(tensors), source, tag))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Message:
        return self._remember(self.post.receive(collectives.only(tensors), MPI.ANY_SOURCE, tag))

    recvAnysource = recv_anysource  # torch 2.15's C++

    def _remember(self, message: Message) -> Message:
        if self.together is not None:
            self.together.append(message)
        return message

    def _start_coalescing(self, device: torch.device) -> None:
        self.together = []

    def _end_coalescing(self, device: torch.device) -> Many:
        works, self.together = self.together or [], None
        return Many(works)

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing  # torch 2.15's C++

    # --------------------------------------------------------------------------------- life and end

    def create_part(self, ranks: list[int], seconds: float) -> MPI.Intracomm:
        """Return a communicator of these ranks of this group, which all call new_group; no others do.

        Raises CollectiveTimeoutError on the ranks that came if one does not come within `seconds`.
        """
        self.channel.check_open()
        key = tuple(ranks)
        self.calls[key] += 1  # the members make their groups in the same order
        roll_call(self._store, self.calls[key], ranks, self.channel.rank, seconds)
        return create_from(self.channel.comm, ranks)

    def mergeRemoteGroup(self, *arguments: Any) -> None:
        """Refuse: torch's own would end the process with a segmentation fault."""
        raise NotImplementedError(
            "the mpi4py backend cannot merge groups of different jobs; start one larger job"
        )

    merge_remote_group = mergeRemoteGroup

    def splitGroup(self, *arguments: Any, **options: Any) -> None:
        """Refuse: torch's own knows its own backends only."""
        raise NotImplementedError("the mpi4py backend splits no groups; call torch.distributed.new_group")

    split_group = splitGroup

    # torch 2.12's names
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def shutdown(self) -> None:
        self.post.cancel_receives()
        self.channel.close(self.post.drain)

    def abort(self) -> None:
        """Give up: fail what is under way here and, where MPI can, on the other ranks."""
        self.channel.broken = self.channel.broken or "abort() was called"
        self.channel.revoke()
        self.shutdown()


def reduction(opts: Any) -> Any:
    """The reduction of an options object, or a bare ReduceOp; SUM when there is none."""
    return dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)


def listed(tensors: Tensors | torch.Tensor) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors
