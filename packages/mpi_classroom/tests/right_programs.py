"""Programs without a mistake, of all the kinds that look like one; nothing may be said of them.

`RIGHT`: name → program. They run on 3 ranks, with `comm`, `rank`, `size`, `np` and `MPI` at hand.
"""

RIGHT = {
    "bytes of an array": """
if rank == 0: comm.Send([np.arange(4.0), MPI.BYTE], 1)
if rank == 1:
    b = np.empty(4)
    comm.Recv(b, 0)
    assert b[3] == 3
""",
    "an array as unsigned bytes": """
if rank == 0: comm.Send(np.arange(4.0), 1)
if rank == 1:
    b = np.empty(32, np.uint8)
    comm.Recv(b, 0)
    assert b.view(float)[3] == 3
""",
    "a matched probe": """
if rank == 0:
    comm.Send(np.arange(5), 1)
    comm.Send(np.arange(5.0), 1)
    comm.Send(np.arange(5, dtype=np.int32), 1)
if rank == 1:
    status = MPI.Status()
    message = comm.Mprobe(0, status=status)
    later = np.empty(5)
    comm.Recv(later, 0)
    b = np.empty(5, int)
    message.Recv(b)
    while (found := comm.Improbe(0)) is None: pass
    b = np.empty(5, np.int32)
    found.Recv(b)
""",
    "a larger buffer and a request's status": """
b, status = np.empty(100), MPI.Status()
request = comm.Irecv(b, (rank - 1) % size)
comm.Send(np.arange(5.0), (rank + 1) % size)
request.Wait(status)
requests = [comm.Irecv(b, (rank - 1) % size), comm.Isend(np.arange(5.0), (rank + 1) % size)]
statuses = []
MPI.Request.Waitall(requests, statuses)
""",
    "columns": """
a = np.arange(12.0).reshape(3, 4).copy()
column = MPI.DOUBLE.Create_vector(3, 1, 4).Commit()
right, left = (rank + 1) % size, (rank - 1) % size
comm.Sendrecv([a, 1, column], right, recvbuf=[a[:, 3:].base.ravel()[3:], 1, column], source=left)
b = np.empty(3)
comm.Sendrecv([a, 1, column], right, recvbuf=b, source=left)
column.Free()
""",
    "columns to and fro at once": """
a = np.arange(12.0).reshape(3, 4).copy()
sizes = [3, 4]
types = [MPI.DOUBLE.Create_subarray(sizes, [3, 1], [0, j]).Commit() for j in range(4)]
right, left = (rank + 1) % size, (rank - 1) % size
requests = [comm.Isend([a, 1, types[1]], left), comm.Irecv([a, 1, types[3]], right)]
a[:, 2] = 7
MPI.Request.Waitall(requests)
for each in types: each.Free()
""",
    "a struct": """
record = np.dtype([("n", "i4"), ("x", "f8")], align=True)
kind = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE]).Create_resized(0, 16).Commit()
a = np.zeros(4, record)
if rank == 0: comm.Send([a, 4, kind], 1)
if rank == 1: comm.Recv([a, 4, kind], 0)
kind.Free()
""",
    "pairs": """
a, b = np.zeros(1, "f8,i4"), np.zeros(1, "f8,i4")
comm.Allreduce([a, 1, MPI.DOUBLE_INT], [b, 1, MPI.DOUBLE_INT], op=MPI.MINLOC)
assert comm.allreduce((1.0, rank), op=MPI.MINLOC) == (1.0, 0)
""",
    "any source, in both orders of types": """
if rank == 0:
    status = MPI.Status()
    for _ in range(2):
        comm.Probe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        b = np.empty(2, int if status.tag == 1 else float)
        comm.Recv(b, status.source, status.tag)
elif rank < 3:
    comm.Send(np.ones(2, int if rank == 1 else float), 0, rank)
""",
    "Sendrecv_replace": """
x = np.full(3, float(rank))
comm.Sendrecv_replace(x, (rank + 1) % size, source=(rank - 1) % size)
request = comm.Isendrecv_replace(x, (rank + 1) % size, source=(rank - 1) % size)
request.Wait()
""",
    "in place": """
x, everything = np.full(2, float(rank)), np.zeros(2 * size)
comm.Allreduce(MPI.IN_PLACE, x)
everything[2 * rank : 2 * rank + 2] = x
comm.Allgather(MPI.IN_PLACE, everything)
comm.Reduce(MPI.IN_PLACE if rank == 0 else x, x if rank == 0 else None)
comm.Gather(MPI.IN_PLACE if rank == 1 else x, everything if rank == 1 else None, root=1)
comm.Scatter(everything if rank == 0 else None, MPI.IN_PLACE if rank == 0 else x)
comm.Alltoall(MPI.IN_PLACE, everything)
comm.Scan(MPI.IN_PLACE, x)
comm.Reduce_scatter_block(MPI.IN_PLACE, everything)
""",
    "from the bottom of memory": """
x, b = np.arange(3.0), np.empty(3)
kind = MPI.DOUBLE.Create_hindexed([3], [MPI.Get_address(x)]).Commit()
if rank == 0: comm.Send([MPI.BOTTOM, 1, kind], 1)
if rank == 1: comm.Recv(b, 0)
kind.Free()
""",
    "vectors of all kinds": """
counts = [1, 2, 3]
everything, mine = np.zeros(6), np.full(rank + 1, float(rank))
comm.Gatherv(mine, [everything, counts, [0, 1, 3], MPI.DOUBLE], root=2)
comm.Gatherv(mine, (everything, (counts, None)), root=2)
comm.Scatterv([everything, counts], mine)
comm.Allgatherv(mine, [everything, counts])
comm.Allgatherv(np.ones(1), (everything, (1, 2), MPI.DOUBLE))
comm.Gatherv(np.ones(1), [everything, 1, None, MPI.DOUBLE])
out = np.zeros(3 * (rank + 1))
comm.Alltoallv([out, [rank + 1] * 3], [everything, counts])
comm.Reduce_scatter(np.ones(6), mine, counts)
two = np.empty(2)
comm.Reduce_scatter_block(np.ones(6), two)
""",
    "a count for each rank": """
x, b = np.zeros(2 * size), np.zeros(2 * size)
comm.Alltoall([x, 2, MPI.DOUBLE], [b, 2, MPI.DOUBLE])
comm.Alltoall(x, [b, 2, MPI.DOUBLE])
comm.Allgather([x, 2, MPI.DOUBLE], [b, 2, MPI.DOUBLE])
comm.Gather(x[:2], [b, 2, MPI.DOUBLE] if rank == 0 else None)
comm.Scatter([x, 2, MPI.DOUBLE] if rank == 0 else None, b[:2])
""",
    "strings and objects": """
text = comm.bcast("a string" if rank == 0 else None)
comm.send({"a": [1, 2]}, (rank + 1) % size, tag=rank)
got = comm.recv(source=(rank - 1) % size, tag=MPI.ANY_TAG)
everything = comm.allgather(np.arange(rank))
assert comm.allreduce(1) == size
part = comm.scatter(list(range(size)) if rank == 0 else None)
request = comm.isend("x" * 10, (rank + 1) % size)
comm.irecv(source=(rank - 1) % size).wait()
request.wait()
comm.sendrecv(1, (rank + 1) % size, source=(rank - 1) % size)
""",
    "torch": """
import torch
t = torch.arange(4.0)
comm.Allreduce(MPI.IN_PLACE, t.numpy())
comm.Bcast(t.numpy())
b = torch.empty(4)
comm.Sendrecv(t.numpy(), (rank + 1) % size, recvbuf=b.numpy(), source=(rank - 1) % size)
comm.Sendrecv(t, (rank + 1) % size, recvbuf=b, source=(rank - 1) % size)
comm.Allreduce(t, b.numpy())
request = comm.Iallreduce(MPI.IN_PLACE, t.numpy())
request.Wait()
comm.Sendrecv(t.numpy()[:2], (rank + 1) % size, recvbuf=b[:2].numpy(), source=(rank - 1) % size)
""",
    "numbers without a dimension": """
x, b = np.array(3.0), np.array(0.0)
comm.Allreduce(x, b)
comm.Sendrecv(np.float64(2), (rank + 1) % size, recvbuf=b, source=(rank - 1) % size)
comm.Reduce(np.array(1.5), b)
""",
    "types by name": """
x, b = np.arange(3.0), np.empty(3)
comm.Allreduce([x, MPI.DOUBLE], [b, MPI.DOUBLE])
comm.Allreduce([x, "d"], b)
if rank == 0: comm.Send([x, 3, MPI.DOUBLE], 1)
if rank == 1: comm.Recv(b, 0)
if rank == 0: comm.Send((x, 2), 1)
if rank == 1: comm.Recv(b[:2], 0)
if rank == 0: comm.Send([x, "d"], 1)
if rank == 1: comm.Recv([b, MPI.DOUBLE], 0)
""",
    "long integers of two names": """
if rank == 0: comm.Send(np.arange(3, dtype=np.longlong), 1)
if rank == 1: comm.Recv(keep := np.empty(3, np.int64), 0)
import array
x = array.array("d", [1, 2])
comm.Allreduce(MPI.IN_PLACE, x)
b = np.empty(2)
comm.Sendrecv(x, (rank + 1) % size, recvbuf=b, source=(rank - 1) % size)
""",
    "requests": """
right, left = (rank + 1) % size, (rank - 1) % size
x, b, c = np.arange(4.0), np.empty(4), np.empty(4)
requests = [comm.Irecv(b, left, 1), comm.Irecv(c, right, 2), comm.Isend(x, right, 1), comm.Isend(x, left, 2)]
y = x.sum()
MPI.Request.Waitall(requests)
request = comm.Irecv(b, left)
comm.Send(x, right)
while not request.Test(): pass
requests = [comm.Isend(x, right), comm.Irecv(b, left)]
while (index := MPI.Request.Waitany(requests)) != MPI.UNDEFINED: pass
requests = [comm.Isend(x, right), comm.Irecv(b, left)]
while not MPI.Request.Testall(requests): pass
x += 1
""",
    "persistent requests": """
right, left = (rank + 1) % size, (rank - 1) % size
x, b = np.zeros(3), np.empty(3)
requests = [comm.Send_init(x, right), comm.Recv_init(b, left)]
for step in range(3):
    x[:] = step
    MPI.Prequest.Startall(requests)
    MPI.Prequest.Waitall(requests)
    assert b[0] == step
for request in requests: request.Free()
total = np.empty(3)
request = comm.Allreduce_init(x, total)
for step in range(2):
    request.Start()
    request.Wait()
request.Free()
""",
    "a receive that is cancelled": """
b = np.empty(3)
request = comm.Irecv(b, (rank - 1) % size, 6)
request.Cancel()
request.Wait()
keep = np.empty(3, int)
comm.Sendrecv(np.arange(3), (rank + 1) % size, 5, keep, (rank - 1) % size, 5)
""",
    "one-sided, with fences": """
window = MPI.Win.Allocate(8 * size, 8, comm=comm)
window.Fence()
window.Put(np.full(1, float(rank)), (rank + 1) % size, rank)
window.Fence()
b = np.empty(1)
window.Get(b, (rank + 1) % size, rank)
window.Fence()
window.Accumulate(np.ones(1), 0, 0, op=MPI.SUM)
window.Fence(MPI.MODE_NOSUCCEED)
window.Free()
""",
    "one-sided, with locks": """
window = MPI.Win.Allocate(8, 8, comm=comm)
one, old = np.ones(1, int), np.zeros(1, int)
window.Lock(0)
window.Fetch_and_op(one, old, 0, 0, MPI.SUM)
window.Unlock(0)
window.Lock_all()
window.Rget(old, 0).Wait()
window.Flush(0)
window.Get(old, 0)
window.Flush_all()
window.Unlock_all()
comm.Barrier()
window.Free()
""",
    "one-sided, with groups": """
memory = np.zeros(size)
window = MPI.Win.Create(memory, 8, comm=comm)
group = comm.Get_group()
others = group.Excl([0])
root = group.Incl([0])
if rank == 0:
    window.Post(others)
    window.Wait()
else:
    window.Start(root)
    window.Put(np.ones(1), 0, rank)
    window.Complete()
window.Free()
""",
    "shared memory": """
window = MPI.Win.Allocate_shared(8 * size if rank == 0 else 0, 8, comm=comm)
memory, _ = window.Shared_query(0)
everything = np.frombuffer(memory, float)
everything[rank] = rank
comm.Barrier()
window.Free()
""",
    "intercommunicators": """
part = comm.Split(rank > 0)
inter = part.Create_intercomm(0, comm, 1 if rank == 0 else 0)
b = np.empty(1)
if rank == 0: inter.Recv(b, 0)
if rank == 1: inter.Send(np.ones(1), 0)
inter.bcast(5 if rank == 0 else None, root=(MPI.ROOT if rank == 0 else 0))
inter.Barrier()
whole = inter.Merge()
whole.Barrier()
for each in (whole, inter, part): each.Free()
""",
    "a grid": """
grid = comm.Create_cart([size], periods=[True])
left, right = grid.Shift(0, 1)
x, b = np.zeros(1), np.empty(2)
grid.Sendrecv(x, right, recvbuf=b[:1], source=left)
grid.Neighbor_allgather(x, b)
grid.Neighbor_alltoall(np.zeros(2), b)
grid.Free()
line = comm.Create_cart([size], periods=[False])
left, right = line.Shift(0, 1)
halo = np.arange(4.0)
line.Sendrecv(halo[2:3], right, recvbuf=halo[0:1], source=left)
line.Sendrecv(halo[1:2], left, recvbuf=halo[3:4], source=right)
requests = [line.Irecv(halo[0:1], left), line.Irecv(halo[3:4], right)]
requests += [line.Isend(halo[1:2], left), line.Isend(halo[2:3], right)]
inside = halo[1:3].sum()
MPI.Request.Waitall(requests)
line.Free()
""",
    "a type for every rank": """
out, b = np.arange(3.0), np.empty(3)
counts, places, kinds = [1] * 3, [0, 8, 16], [MPI.DOUBLE] * 3
comm.Alltoallw([out, (counts, places), kinds], [b, (counts, places), kinds])
request = comm.Ialltoallw([out, (counts, places), kinds], [b, (counts, places), kinds])
request.Wait()
""",
    "one communicator of a part": """
part = comm.Split(0 if rank < 2 else MPI.UNDEFINED)
if part != MPI.COMM_NULL:
    part.Barrier()
    part.Free()
""",
    "messages on two communicators": """
copy = comm.Dup()
right, left = (rank + 1) % size, (rank - 1) % size
requests = [copy.Isend(np.arange(2), right), comm.Isend(np.arange(2.0), right)]
b, c = np.empty(2), np.empty(2, int)
comm.Recv(b, left)
copy.Recv(c, left)
MPI.Request.Waitall(requests)
copy.Free()
""",
    "receives that are posted early": """
right, left = (rank + 1) % size, (rank - 1) % size
b, c, d = np.empty(2), np.empty(2, int), np.empty(2, np.float32)
first = comm.Irecv(b, left)
second = comm.Irecv(c, MPI.ANY_SOURCE, MPI.ANY_TAG)
comm.Send(np.zeros(2), right)
comm.Send(np.zeros(2, int), right)
comm.Send(np.zeros(2, np.float32), right)
comm.Recv(d, left)
second.Wait()
first.Wait()
""",
    "messages to nobody and from nobody, in every form": """
x, y, nobody = np.arange(3.0), np.empty(3), MPI.PROC_NULL
MPI.Attach_buffer(bytearray(1000))
for send in comm.Send, comm.Ssend, comm.Rsend, comm.Bsend, comm.send, comm.ssend, comm.bsend: send(x, nobody)
comm.recv(source=nobody)
comm.Recv(y, nobody)
comm.Irecv(y, nobody).Wait()
MPI.Detach_buffer()
for start in comm.Isend, comm.Issend, comm.Irsend, comm.isend, comm.issend: start(x, nobody).wait()
comm.irecv(source=nobody).wait()
comm.Isendrecv(x, nobody, recvbuf=y, source=nobody).Wait()
comm.Isendrecv_replace(x, nobody, source=nobody).Wait()
for make in comm.Send_init, comm.Ssend_init, comm.Recv_init:
    request = make(x, nobody)
    for _ in range(2):
        request.Start()
        request.Wait()
    request.Free()
comm.Probe(nobody)
assert comm.Iprobe(nobody) and comm.iprobe(nobody)
comm.Mprobe(nobody).Recv(y)
comm.Improbe(nobody).Recv(y)
window = MPI.Win.Allocate(24, comm=comm)
window.Fence()
window.Put(x, nobody)
window.Get(y, nobody)
window.Accumulate(x, nobody)
window.Fence()
window.Put(x, nobody)
window.Free()
""",
    "empty messages": """
nothing = np.empty(0)
comm.Sendrecv(nothing, (rank + 1) % size, recvbuf=nothing, source=(rank - 1) % size)
comm.Sendrecv(np.empty(0), (rank + 1) % size, recvbuf=np.empty(0), source=(rank - 1) % size)
if rank == 0: comm.Send([None, MPI.INT], 1)
if rank == 1: comm.Recv(nothing, 0)
""",
    "a message whose content nobody wants": """
if rank == 0: comm.Send(np.zeros(3), dest=1)
if rank == 1: comm.Recv(np.empty(3), source=0)
""",
    "a view that is received into": """
a = np.zeros((4, 4))
right, left = (rank + 1) % size, (rank - 1) % size
comm.Sendrecv(np.ones(4), right, recvbuf=a[1], source=left)
comm.Sendrecv(np.ones(4), right, recvbuf=a[2:3], source=left)
comm.Sendrecv(np.ones(16), right, recvbuf=a.reshape(-1), source=left)
comm.Sendrecv(np.ones(16), right, recvbuf=a.T, source=left)
class Holder: pass
holder = Holder()
holder.x = np.zeros(4)
comm.Sendrecv(np.ones(4), right, recvbuf=holder.x, source=left)
table = {"x": np.zeros(4)}
comm.Sendrecv(np.ones(4), right, recvbuf=table["x"], source=left)
table = [np.zeros(4) for _ in range(2)]
comm.Allreduce(np.ones(4), table[1])
assert a[1, 0] == 1
""",
    "collectives of another thread": """
import threading
c = comm.Dup()
total = np.empty(1)
def work():
    for _ in range(3): c.Allreduce(np.ones(1), total)
thread = threading.Thread(target=work) if rank == 0 else None
if thread: thread.start()
else: work()
comm.Barrier()
if thread: thread.join()
assert c.bcast(total[0]) == size
c.Free()
""",
    "one thread beside another": """
import threading
def work():
    b = np.empty(2)
    copy.Sendrecv(np.ones(2), (rank + 1) % size, recvbuf=b, source=(rank - 1) % size)
copy = comm.Dup()
thread = threading.Thread(target=work)
thread.start()
thread.join()
work()
copy.Free()
""",
    "packed data": """
x, n, memory = np.arange(3.0), np.array([7]), bytearray(100)
if rank == 0:
    at = MPI.LONG.Pack(n, memory, 0, comm)
    at = MPI.DOUBLE.Pack(x, memory, at, comm)
    comm.Send([memory, at, MPI.PACKED], 1)
if rank == 1:
    comm.Recv([memory, MPI.PACKED], 0, status=MPI.Status())
""",
    "a pool of mpi4py.futures": """
from mpi4py.futures import MPICommExecutor
with MPICommExecutor(comm, root=0) as pool:
    if pool is not None:
        assert list(pool.map(abs, range(-6, 0))) == [6, 5, 4, 3, 2, 1]
""",
    "objects by pickle 5": """
from mpi4py.util import pkl5
c = pkl5.Intracomm(comm)
x = c.bcast(np.arange(1000) if rank == 0 else None)
c.send(x, (rank + 1) % size) if rank % 2 == 0 else None
if (rank - 1) % size % 2 == 0: c.recv(source=(rank - 1) % size)
""",
    "a message that Message.iprobe found": """
if rank == 0:
    comm.send("a", 1)
elif rank == 1:
    while not (message := MPI.Message.iprobe(comm, 0)):
        pass
    assert isinstance(message, MPI.Message)
    assert message.recv() == "a"
""",
}
