"""Programs with a mistake of the kind that ends in wrong numbers and no error, each with what is said.

`MISTAKES`: name → (words of the report, program). They run on 3 ranks, with `comm`, `rank`, `size`, `np`
and `MPI` at hand. The table in `docs/mistakes.md` has a row for each kind.
"""

MISTAKES = {
    "integers are received as floats": (
        [
            "Mistake: rank 0 sent 4 int64 (line 2:",
            "rank 1 received them into 4 float64 (line 5:",
            "np.arange(4.0)",
        ],
        """
if rank == 0:
    comm.Send(np.arange(4), dest=1)
elif rank == 1:
    b = np.empty(4)
    comm.Recv(b, source=0)
""",
    ),
    "one line that sends other types the second time": (
        ["Mistake: rank 0 sent 3 int64 (line 2:", "rank 1 received them into 3 float64 (line 3:"],
        """
for kind in (float, int, float):
    if rank == 0: comm.Send(np.ones(3, kind), 1)
    if rank == 1: comm.Recv(b := np.empty(3), 0)
""",
    ),
    "one line that receives into other types the second time": (
        ["Mistake: ", "sent 3 float64 (line 3:", "received them into 3 int64 (line 3:"],
        """
x, right, left = np.ones(3), (rank + 1) % size, (rank - 1) % size
for kind in (float, int, float):
    comm.Sendrecv(x, right, recvbuf=(b := np.empty(3, kind)), source=left)
""",
    ),
    "one line whose arrays overlap the second time": (
        ["used the same memory to send and to receive (line 2:"],
        """
x, right, left = np.ones(6), (rank + 1) % size, (rank - 1) % size
for i in (0, 2, 0): comm.Sendrecv(x[i:i + 3], right, recvbuf=x[3:], source=left)
""",
    ),
    "one line whose message is shorter the second time": (
        ["Note: rank 1 received a message that fills 2 of the 3 elements", "(line 2:"],
        """
for n in (3, 2, 3):
    comm.Recv(b := np.empty(3), 0) if rank == 1 else comm.Send(np.ones(n), 1) if rank == 0 else None
""",
    ),
    "a wrong type in a collective of another thread": (
        ["in Bcast rank 0 sent 2 int64 (line 1:", "received into 2 float64 (line 1:"],
        """
def work(): comm.Bcast(x := np.ones(2, int if rank == 0 else float))
import threading
thread = threading.Thread(target=work)
thread.start()
thread.join()
""",
    ),
    "any source, any tag": (
        ["rank 2 sent 2 int32 (line 2:", "rank 0 received them into 1 int64 (line 5:"],
        """
if rank == 2:
    comm.Isend(np.ones(2, np.int32), 0, tag=7).Wait()
elif rank == 0:
    b = np.empty(1, np.int64)
    comm.Irecv(b, MPI.ANY_SOURCE, MPI.ANY_TAG).Wait()
""",
    ),
    "an object is received into an array": (
        [
            "rank 0 sent a Python object (line 2:",
            "rank 1 received it into 100 float64 (line 5:",
            "`send` pairs with",
        ],
        """
if rank == 0:
    comm.send(np.arange(4.0), dest=1)
elif rank == 1:
    b = np.empty(100)
    comm.Recv(b, source=0, status=MPI.Status())
""",
    ),
    "a type by name that the memory does not have": (
        ["rank 0 sent 2 float32 (line 2:", "into 2 int32 (line 5:"],
        """
if rank == 0:
    comm.Send([np.ones(2, np.float32), MPI.FLOAT], dest=1)
elif rank == 1:
    b = np.empty(2, np.int32)
    comm.Recv([b, 2, MPI.INT], source=0)
""",
    ),
    "a derived type of other parts": (
        ["rank 0 sent 6 float64 (line 4:", "into 6 int64 (line 7:"],
        """
a = np.arange(12.0).reshape(3, 4)
columns = MPI.DOUBLE.Create_vector(3, 2, 4).Commit()
if rank == 0:
    comm.Send([a, 1, columns], dest=1)
elif rank == 1:
    b = np.empty(6, np.int64)
    comm.Recv(b, source=0)
columns.Free()
""",
    ),
    "Bcast of integers into floats": (
        ["in Bcast rank 0 sent 4 int64 (line 2:", "received into 4 float64 (line 2:"],
        """
data = np.arange(4) if rank == 0 else np.empty(4)
comm.Bcast(data, root=0)
""",
    ),
    "Gatherv with wrong counts": (
        ["in Gatherv rank 1 sent 2 float64 (line 4:", "received into 3 float64 (line 4:"],
        """
mine = np.ones(rank + 1)
everything = np.zeros(7)
counts = [1, 3, 3]
comm.Gatherv(mine, [everything, counts, [0, 1, 4], MPI.DOUBLE] if rank == 0 else None, root=0)
""",
    ),
    "Iallreduce of two types": (
        ["in Iallreduce rank 0 has 2 float64 (line 3:", "rank 2 2 int64 (line 3:"],
        """
mine = np.ones(2, int if rank == 2 else float)
total = np.empty_like(mine)
comm.Iallreduce(mine, total).Wait()
""",
    ),
    "two roots": (
        ["rank 0 has the root 0 (line 2:", "rank 1 has the root 1 (line 2:"],
        """
for root in (0, 0): pass
comm.Ibcast(np.zeros(1), root=0 if rank != 1 else 1)
""",
    ),
    "two operators": (
        ["rank 0 has the operator SUM (line 2:", "rank 1 has the operator MAX (line 2:"],
        """
total = np.empty(1)
comm.Allreduce(np.ones(1), total, op=MPI.SUM if rank == 0 else MPI.MAX)
""",
    ),
    "a long send buffer is changed before the wait": (
        ["changed the send buffer of Isend (line 2:", "(line 5:"],
        """
x, b = np.arange(40_000.0), np.empty(40_000)
request = comm.Isend(x, (rank + 1) % size)
x += 1
comm.Recv(b, (rank - 1) % size)
MPI.Request.Waitall([request])
""",
    ),
    "one array for both sides": (
        ["used the same memory to send and to receive (line 2:", "Sendrecv_replace"],
        """
x = np.full(3, float(rank))
comm.Sendrecv(x, (rank + 1) % size, recvbuf=x, source=(rank - 1) % size)
""",
    ),
    "Allgather into its own input": (
        ["used the same memory to send and to receive (line 2:", "IN_PLACE"],
        """
x = np.arange(float(size))
comm.Allgather(x[rank : rank + 1], x)
""",
    ),
    "two receives into one array": (
        ["used memory in Irecv (line 3:", "that Irecv (line 3:"],
        """
b = np.empty(2)
if rank == 0:
    requests = [comm.Irecv(b, source) for source in (1, 2)]
    MPI.Request.Waitall(requests)
else:
    comm.Send(np.full(2, float(rank)), 0)
""",
    ),
    "a blocking receive into memory that is being sent": (
        ["used memory in Recv (line 3:", "that Isend (line 2:"],
        """
x = np.full(3, float(rank))
request = comm.Isend(x, (rank + 1) % size)
comm.Recv(x, (rank - 1) % size)
request.Wait()
""",
    ),
    "a Bcast into a copy with its type": (
        ["received into a temporary copy, so the data is gone (line 2:"],
        """
a = np.zeros((3, 3))
comm.Bcast([np.ascontiguousarray(a[:, 1]), MPI.DOUBLE])
""",
    ),
    "a later receive into a copy": (
        ["received into a temporary copy, so the data is gone (line 2:"],
        """
a = np.zeros((3, 3))
request = comm.Irecv(a[:, 0].copy(), (rank - 1) % size)
comm.Send(np.ones(3), (rank + 1) % size)
request.Wait()
""",
    ),
    "memory that is resized": (
        ["resized or freed the buffer of Isend (line 2:"],
        """
x, b = np.ones(4), np.empty(4)
request = comm.Isend(x, (rank + 1) % size)
x.resize(400_000, refcheck=False)
comm.Recv(b, (rank - 1) % size)
request.Wait()
""",
    ),
    "a request that is lost": (
        ["Mistake: ranks 0, 1, 2 never waited for the request of Isend (line 2:"],
        """
b = np.empty(4)
comm.Isend(np.ones(4), (rank + 1) % size)
comm.Recv(b, (rank - 1) % size)
""",
    ),
    "a request that is not waited for": (
        ["Note: ranks 0, 1, 2 have not waited yet for the request of Irecv (line 2:"],
        """
b = np.empty(4)
request = comm.Irecv(b, (rank - 1) % size)
comm.Send(np.ones(4), (rank + 1) % size)
""",
    ),
    "a receive buffer that is read before its wait": (
        ["read b in line 4: total = b.sum() before the Wait of Irecv", "(line 2:"],
        """
b = np.zeros(4)
request = comm.Irecv(b, (rank - 1) % size)
comm.Send(np.ones(4), (rank + 1) % size)
total = b.sum()
request.Wait()
""",
    ),
    "a request that is started twice": (
        ["started the request of Send_init (line 3:", "once more (line 4:"],
        """
x, b = np.ones(2), np.empty(2)
request = comm.Send_init(x, MPI.PROC_NULL if rank else 1)
request.Start()
try: request.Start()
except MPI.Exception: pass
request.Wait()
if rank == 1: comm.Recv(b, 0)
""",
    ),
    "access outside an epoch": (
        ["called Put outside an epoch (line 3:"],
        """
window = MPI.Win.Allocate(8, 8, comm=comm)
if rank == 0:
    try: window.Put(np.ones(1), 1)
    except MPI.Exception: pass
window.Free()
""",
    ),
    "two writers to one place": (
        ["rank 1's Put (line 3:", "rank 2's Put (line 3:", "same place of rank 0's window"],
        """
window = MPI.Win.Allocate(16, 8, comm=comm)
window.Fence()
if rank: window.Put(np.full(1, float(rank)), 0, 1)
window.Fence()
window.Free()
""",
    ),
    "communicators that are not freed": (
        ["Note: ranks 0, 1, 2 made", "communicators with Split (line 2:", "unfreed"],
        """
for step in range(20):
    part = comm.Split(rank % 2)
    part.Barrier()
""",
    ),
    "unsigned and signed": (
        ["Note: rank 0 sent 3 uint32 (line 2:", "into 3 int32 (line 5:"],
        """
if rank == 0:
    comm.Send(np.ones(3, np.uint32), 1)
elif rank == 1:
    b = np.empty(3, np.int32)
    comm.Recv(b, 0)
""",
    ),
    "Sendrecv_replace of two types": (
        ["rank 0 sent 3 float32 (line 3:", "rank 1 received them into 3 int32 (line 3:"],
        """
x = np.arange(3, dtype=np.int32)
if rank == 0: x = x.astype(np.float32)
comm.Sendrecv_replace(x, (rank + 1) % size, 0, (rank - 1) % size, 0)
""",
    ),
    "a struct whose parts come in another order": (
        ["1 × (1 int32, 1 float64)", "1 × (1 float64, 1 int32)", "their parts in the same order"],
        """
one = MPI.Datatype.Create_struct([1, 1], [0, 4], [MPI.INT, MPI.DOUBLE]).Commit()
other = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT]).Commit()
if rank == 0: comm.Send([bytearray(16), 1, one], 1)
elif rank == 1: comm.Recv([bytearray(16), 1, other], 0)
one.Free(); other.Free()
""",
    ),
    "Alltoall into complex numbers": (
        ["in Alltoall rank 0 sent 2 float64 (line 2:", "received into 1 complex128 (line 2:"],
        """
table = np.empty(size, complex)
comm.Alltoall(np.arange(2.0 * size), table)
""",
    ),
}

_RING = "right, left = (rank + 1) % size, (rank - 1) % size\n"
ON_ANY_NUMBER_OF_RANKS = {
    "integers go round a ring of floats": (
        ["Mistake: rank 0 sent 4 int32 (line 2:", "received them into 2 float64 (line 2:"],
        _RING + "comm.Sendrecv(np.ones(4, np.int32), right, recvbuf=(b := np.empty(2)), source=left)",
    ),
    "the last rank gathers from a rank with fewer": (
        ["in Gather rank 0 sent 2 float64 (line 2:", "received into 3 float64 (line 2:"],
        "x, all_of_them = np.ones(3 if rank else 2), np.empty(3 * size) if rank == size - 1 else None\n"
        "try: comm.Gather(x, all_of_them, root=size - 1)\n"
        "except MPI.Exception: pass",
    ),
    "one rank reduces another type": (
        ["in Allreduce rank 0 has 2 float64 (line 1:", "2 int64 (line 1:"],
        "comm.Allreduce(MPI.IN_PLACE, total := np.ones(2, int if rank == size - 1 else float))",
    ),
    "a request that is lost on all ranks": (
        ["never waited for the request of Irecv (line 2:"],
        _RING + "comm.Irecv(b := np.empty(2), left)\ncomm.Send(np.ones(2), right)",
    ),
    "a send buffer that changes on its way": (
        ["changed the send buffer of Isend (line 3:", "(line 6:"],
        _RING + "x = np.ones(3)\nrequest = comm.Isend(x, right)\nx[0] = 7\n"
        "comm.Recv(b := np.empty(3), left)\nrequest.Wait()",
    ),
    "one half of the ranks has a communicator of its own, and mixes types": (
        ["Mistake: rank", "sent 2 int64 (line 2:", "received them into 2 float64 (line 2:"],
        "half = comm.Split(rank % 2, -rank)\n"
        "half.Sendrecv(np.ones(2, int), (half.rank + 1) % half.size, recvbuf=(b := np.empty(2)), "
        "source=(half.rank - 1) % half.size)\nhalf.Free()",
    ),
    "a line of ranks that exchange with nobody at its ends": (
        [],
        "for step in (1, -1):\n"
        "    to, source = (at if 0 <= at < size else MPI.PROC_NULL for at in (rank + step, rank - step))\n"
        "    comm.Sendrecv(np.ones(2), to, 3, b := np.empty(2), source, 3)\n"
        "    request = comm.Isendrecv(np.ones(2), to, 3, b, source, 3)\n"
        "    request.Wait()",
    ),
    "the root receives from any source, in any order": (
        [],
        "b = np.empty(1)\n"
        "if rank: comm.Send(np.ones(1), 0)\n"
        "else:\n    for _ in range(size - 1): comm.Recv(b)",
    ),
}
