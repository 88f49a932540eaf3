"""Broken cells, one after the other in one notebook on four ranks: each ends, says why, and the next works.

A real kernel runs the cells, as JupyterLab does. After each of them an all-reduce over all ranks must give
the right number on all of them. `make test` runs eight cells that hang or kill ranks, and those that end by
themselves; the others run in `make test-all`, and test_hang.py has the causes of all kinds.
"""

import os
import re
import signal
import threading
import time

import psutil
import pytest

from mpi_classroom import processes
from packages.mpi_classroom.tests.broken_cells import BROKEN_CELLS, RARE, RESTARTED, TORCH
from packages.mpi_classroom.tests.kernel import Notebook, open_notebook

pytestmark = pytest.mark.timeout(240)

STANDSTILL = 1.5  # instead of ten seconds
START = f"""
from mpi_classroom import watch
from mpi_classroom.cluster import start_cluster
watch.STANDSTILL_SECONDS = {STANDSTILL}
cluster = start_cluster(n=4)
"""
SETUP = """
%%px --setup
from mpi4py import MPI
import numpy as np, os, sys, time
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
""".strip()
# One of every kind: of causes, of ways to free the ranks, of what the watch has to notice.
LIVE = {
    "rank 0 raises before a collective",
    "a collective skipped by one rank",
    "a reduction that the root skips, so that nobody waits",
    "a receive request that never completes",
    "an endless loop",
    "a loop that no interrupt ends",
    "an interrupt while all are blocked",
    "a rank killed in the cell",
}
ALL_RANKS = "[stdout:0] 6\n[stdout:1] 6\n[stdout:2] 6\n[stdout:3] 6"


@pytest.fixture(scope="module")
def notebook():
    with open_notebook(JPY_SESSION_NAME="/home/x/04_lesson.ipynb") as opened:
        started = opened.run(START)
        assert started.output.startswith("4 ranks"), started.text
        assert opened.run(SETUP).text.strip() == ""
        yield opened


def works(notebook: Notebook) -> None:
    """The next cell, an all-reduce over all ranks, gives the right number."""
    after = notebook.run("%%px\nprint(comm.allreduce(rank))", within=90)
    assert sorted(after.output.split("\n"))[-4:] == ALL_RANKS.split("\n"), after.text
    assert after.error == ""


# They end by themselves, in a moment.
QUICK = {
    "an object that cannot be pickled",
    "all ranks raise the same",
    "the ranks raise different errors",
    "a function raises deep inside",
    "an error in the syntax",
    "quit on all ranks",
    "MPI.Finalize",
    "a question to the learner",
    "a sum on one rank and a maximum on the others",
    "a Sendrecv that receives from the side to which it sends",
    "a message larger than its buffer",
    "a raise before a receive, after the send",
}
CASES = [
    pytest.param(broken, marks=() if broken.name in LIVE | QUICK else pytest.mark.slow, id=broken.name)
    for broken in BROKEN_CELLS
] + [pytest.param(broken, marks=pytest.mark.release, id=broken.name) for broken in RARE]


@pytest.mark.parametrize("broken", CASES)
def test_a_broken_cell_ends_with_its_report_and_the_next_one_works(notebook, broken):
    cell = f"%%px {broken.options}\n{broken.source}"
    ran = notebook.run(cell, within=90, interrupt_after=broken.interrupt_after)
    for pattern in broken.reads:
        assert re.search(pattern, ran.error), f"{pattern!r} is not in\n{ran.text}"
    assert "Traceback" not in ran.error
    works(notebook)


@pytest.mark.parametrize(
    "work",
    [
        "ends = time.time() + 3\n    while time.time() < ends: sum(range(1000))",
        "import subprocess\n    subprocess.run(['sleep', '3'])",
    ],
)
def test_a_rank_that_computes_while_the_others_wait_is_no_hang(notebook, work):
    ran = notebook.run(f"%%px\nif rank == 1:\n    {work}\nprint(comm.allreduce(rank))", within=60)
    assert ran.error == "" and sorted(ran.output.split("\n"))[-4:] == ALL_RANKS.split("\n")


SLOW_TORCH = f"""
{TORCH}
import torch_mpi4py.collectives as collectives
slowly, plain = {STANDSTILL + 2}, collectives.reduce_row
def reduce_row(*arguments): time.sleep(slowly); plain(*arguments)
if rank == 1: time.sleep(slowly)
dist.barrier()
collectives.reduce_row = reduce_row
total = torch.tensor([1.0 * rank])
dist.all_reduce(total, async_op=True).wait()
collectives.reduce_row = plain
print(int(total))
"""


@pytest.mark.slow
def test_ranks_in_torch_wait_for_a_late_rank_and_for_data_that_moves_slowly(notebook):
    ran = notebook.run(f"%%px{SLOW_TORCH}", within=60)
    assert ran.error == "" and sorted(ran.output.split("\n"))[-4:] == ALL_RANKS.split("\n")


# -------------------------------------------------------------------- output


def test_megabytes_of_lines_end_with_the_middle_left_out(notebook):
    ran = notebook.run('%%px\nfor i in range(10_000): print("x" * 99)', within=60)
    assert ran.error == ""
    assert ran.output.count("characters not shown") == 4 and len(ran.output) < 10**6
    works(notebook)


def test_output_comes_while_the_cell_runs_and_a_status_line_from_three_seconds_on(notebook):
    source = "%%px\nif rank == 0:\n    print('early', flush=True)\n    time.sleep(4.5)\ncomm.Barrier()"
    seen = []
    message = notebook.client.execute(source)
    began = time.monotonic()
    while not any(text.endswith("(4 s)") for _, text in seen):
        assert time.monotonic() - began < 30, seen
        shown = notebook.client.get_iopub_msg(timeout=30)
        if shown["parent_header"].get("msg_id") == message and "data" in shown["content"]:
            seen.append((time.monotonic() - began, shown["content"]["data"]["text/plain"]))
    early = next(when for when, text in seen if text == "[stdout:0] early")
    status = next((when, text) for when, text in seen if text.startswith("3 s · "))
    assert early < status[0]
    assert "rank 0 computing · rank 1 waiting in Barrier · rank 2 waiting in Barrier" in status[1]
    works(notebook)


# -------------------------------------------------------------------- what the learner did to the ranks


def test_a_name_taken_away_is_an_error_that_running_setup_again_mends(notebook):
    notebook.run("%%px\ncomm, print = 5, 3\ndel MPI")
    assert "'int' object has no attribute 'allreduce'" in notebook.run("%%px\ncomm.allreduce(rank)").error
    number = notebook.run("%%px\nprint = 3").number
    hint = f"print is a variable of yours since cell [{number}]; `%px del print` brings Python's own back."
    assert hint in notebook.run("%%px\nprint(rank)").error
    notebook.run("%px del print")
    notebook.run(SETUP)
    works(notebook)


DAMAGE = ("sys.stdout.close()", "os.close(1)", "import builtins; builtins.print = None")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_cell_that_takes_the_output_away_does_not_silence_the_next(notebook, damage):
    assert notebook.run(f"%%px\n{damage}").error == ""
    works(notebook)


def test_a_thread_left_waiting_in_mpi_does_not_make_a_computing_rank_look_stuck(notebook):
    notebook.run(
        "%%px\nfrom threading import Thread\n"
        "Thread(target=comm.recv, args=(None, rank, 77), daemon=True).start()"
    )
    ran = notebook.run(
        f"%%px\nend = time.time() + {STANDSTILL + 1.5}\nwhile time.time() < end: pass", within=90
    )
    assert ran.error == ""
    works(notebook)


def test_a_process_forked_in_a_cell_that_goes_on_as_if_it_were_the_rank_ends_with_the_cell(notebook):
    ran = notebook.run("%%px\nchild = os.fork() if rank == 1 else 0\ncomm.Barrier()")
    assert ran.error == ""
    works(notebook)
    ran = notebook.run("%%px --targets 1\nos.waitpid(child, 0)[1]")
    assert ran.error == "" and "Out[1" in ran.output
    works(notebook)


def test_an_mpi_program_that_a_cell_starts_is_a_world_of_its_own(notebook):
    program = "from mpi4py import MPI; print('alone:', MPI.COMM_WORLD.size)"
    call = f'subprocess.run([sys.executable, "-c", "{program}"], capture_output=True).stdout'
    ran = notebook.run(f"%%px\nimport subprocess\nprint({call})", within=60)
    assert ran.error == "" and ran.output.count("alone: 1") == 4, ran.text
    works(notebook)


LEAVING = "get_ipython().ask_exit()", "get_ipython().kernel.do_shutdown(False)"


@pytest.mark.parametrize("leave", [LEAVING[0], pytest.param(LEAVING[1], marks=pytest.mark.slow)])
def test_a_rank_that_leaves_after_the_cell_is_replaced(notebook, leave):
    notebook.run(f"%%px\nif rank == 1: {leave}")
    time.sleep(2)
    ran = notebook.run("%%px\nx = comm.allreduce(rank)", within=60)
    assert ran.error == "" or re.search(r"rank 1 ended itself|rank 1 left Python", ran.error), ran.text
    notebook.run(SETUP)
    works(notebook)


# -------------------------------------------------------------------- between the cells


def ranks_of(notebook):
    """The processes of the notebook's cluster: {rank: pid}, the controller's, all."""
    facts = notebook.run("print([fact.pid for fact in cluster.facts])").output
    pids = [int(pid) for pid in re.findall(r"\d+", facts)]
    (cluster,) = [c for c in processes.running_clusters() if c.owner_pid == notebook.pid]
    found = [psutil.Process(pid) for pid in cluster.pids]
    first = min((p for p in found if "ipyparallel.controller" in p.cmdline()), key=lambda p: p.create_time())
    return dict(enumerate(pids)), first.pid, [process.pid for process in found]


@pytest.mark.slow
def test_a_rank_killed_between_two_cells_is_replaced_and_the_cell_runs(notebook):
    notebook.run("cluster.restart()")
    pids, _, _ = ranks_of(notebook)
    os.kill(pids[1], signal.SIGKILL)
    time.sleep(1.5)
    works(notebook)
    assert ranks_of(notebook)[0] != pids


def test_a_rank_killed_between_two_cells_takes_variables_with_it_and_that_is_said(notebook):
    made = notebook.run("%%px\nmodel = 1")
    pids, _, _ = ranks_of(notebook)
    os.kill(pids[3], signal.SIGKILL)
    time.sleep(1.5)
    ran = notebook.run("%%px\nprint(model)")
    assert re.match(r"ClusterError: rank 3 was killed \(signal 9", ran.error), ran.text
    # The cells of earlier tests may have made more, so other names and other cells may be told as well.
    lost = re.search(r"lost on the ranks: (.*)\. Run cells? (.*) again\.", ran.error)
    assert lost is not None and "model" in lost[1].split(", "), ran.error
    assert f"[{made.number}]" in lost[2], ran.error
    works(notebook)


def test_a_controller_killed_during_a_cell(notebook):
    _, controller, _ = ranks_of(notebook)
    cell = f"import os, threading\nthreading.Timer(1, os.kill, ({controller}, 9)).start()"
    notebook.run(cell)
    ran = notebook.run("%%px\ntime.sleep(20)", within=90)
    assert ran.error.startswith("HangError: the controller ended with signal 9")
    assert re.search(RESTARTED, ran.error)
    works(notebook)


@pytest.mark.parametrize("seconds", [3, pytest.param(25, marks=pytest.mark.slow)])
def test_ranks_that_are_stopped_for_longer_than_heartbeats_may_be_missed_go_on(notebook, seconds):
    pids, _, _ = ranks_of(notebook)
    message = "%%px --timeout 50\ncomm.Barrier()\ntime.sleep(0.5)\nprint(comm.allreduce(rank))"
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    try:
        threading.Timer(seconds, lambda: [os.kill(pid, signal.SIGCONT) for pid in pids.values()]).start()
        ran = notebook.run(message, within=90)
    finally:
        for pid in pids.values():
            os.kill(pid, signal.SIGCONT)
    assert ran.error == "" and all(f"[stdout:{rank}] 6" in ran.output for rank in range(4))
    works(notebook)


@pytest.mark.parametrize("seconds", [6, pytest.param(25, marks=pytest.mark.slow)])
def test_a_laptop_that_sleeps_does_not_use_up_the_deadline(notebook, seconds):
    """Everything is stopped for longer than the cell may take or heartbeats may be missed; it goes on."""
    notebook.run("%%px\nkept = rank")
    _, _, everything = ranks_of(notebook)
    asleep = [notebook.pid, *everything]
    source = "%%px --timeout 4\ncomm.Barrier()\ntime.sleep(1)\nprint(comm.allreduce(rank))"
    message = notebook.client.execute(source)
    time.sleep(0.5)
    for pid in asleep:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in asleep:
        os.kill(pid, signal.SIGCONT)
    reply = notebook.client.get_shell_msg(timeout=30)
    while reply["parent_header"].get("msg_id") != message:
        reply = notebook.client.get_shell_msg(timeout=30)
    assert reply["content"]["status"] == "ok", reply["content"]
    works(notebook)
    assert notebook.run("%%px\nassert kept == rank").error == "", "no rank was replaced"


# -------------------------------------------------------------------- messages from cell to cell


def test_a_message_may_be_sent_in_one_cell_and_received_in_the_next(notebook):
    sent = notebook.run("%%px\nif rank == 0: request = comm.isend('hello', dest=1, tag=4)")
    assert sent.error == ""
    assert re.search(
        r"1 message was sent and not received yet: rank 0 → rank 1, tag 4, \d+ bytes\.", sent.output
    )
    assert notebook.run("%%px\nx = rank").text.strip() == "", "it is said once"
    received = notebook.run(
        "%%px\nif rank == 1: print(comm.recv(source=0, tag=4))\nif rank == 0: request.wait()"
    )
    assert (received.output.strip(), received.error) == ("[stdout:1] hello", "")
    works(notebook)


def test_what_a_raise_left_on_its_way_does_not_become_a_wrong_number(notebook):
    source = "%%px\nvalue = np.full(1, {}.0)\nif rank == 0: comm.Send(value, dest=1)\n{}"
    receive = "if rank == 1: comm.Recv(value, source=0); print(value[0])"
    ran = notebook.run(source.format(1, f"if rank == 1: raise ValueError('boom')\n{receive}"))
    assert "1 message that nobody had received was thrown away: rank 0 → rank 1, tag 0, 8 bytes." in ran.error
    assert notebook.run(source.format(2, receive)).output == "[stdout:1] 2.0\n"
    works(notebook)


def test_a_message_of_an_earlier_cell_is_not_thrown_away_when_a_rank_raises(notebook):
    notebook.run("%%px\nif rank == 0: comm.send('kept', dest=1)")
    ran = notebook.run("%%px\nif rank == 2: comm.send(1, dest=3)\nif rank == 3: 1 / 0")
    assert "2 messages were sent and not received yet" in ran.error and "ZeroDivisionError" in ran.error
    ran = notebook.run("%%px\nif rank in (1, 3): print(comm.recv())")
    assert "[stdout:1] kept" in ran.output
    works(notebook)


def test_messages_on_a_part_of_the_world_are_found_too(notebook):
    ran = notebook.run("%%px\nhalf = comm.Split(rank // 2)\nif rank == 2: half.send(1, dest=1, tag=9)")
    assert "rank 2 → rank 3, tag 9" in ran.output
    notebook.run("%%px\nif rank == 3: half.recv()")
    works(notebook)


def test_what_is_sent_to_a_subset_in_a_cell_of_its_own_needs_no_remark(notebook):
    assert notebook.run("%%px --targets 0\ncomm.send(1, dest=1)").text.strip() == ""
    assert notebook.run("%%px --targets 1\nprint(comm.recv())").error == ""
    works(notebook)


# -------------------------------------------------------------------- what a restart loses


def test_a_restart_runs_the_setup_cells_and_names_what_is_lost(notebook):
    sources = "model = 1\ndef f(x): y = x", "print(model)", "losses = [model]\nimport json", "comm.Barrier()"
    cells = [notebook.run(f"%%px\n{source}") for source in sources]
    assert all(cell.error == "" for cell in cells)
    ran = notebook.run("%%px\nif rank: comm.Barrier()", within=90)
    # Cells of earlier tests may have made more.
    lost = re.search(
        r"and the setup cell run again; lost on the ranks: (.*)\. Run cells (.*) again\.", ran.error
    )
    assert lost is not None and {"f", "json", "losses", "model"} <= set(lost[1].split(", ")), ran.text
    assert f"[{cells[0].number}], [{cells[2].number}]" in lost[2], ran.text
    works(notebook)


@pytest.mark.slow
def test_a_setup_cell_that_fails_when_it_is_run_again_is_told_and_dropped(notebook, tmp_path):
    once = f"%%px --setup\nopen(f'{tmp_path}/{{rank}}', 'x').close()"  # a second time the file exists
    assert notebook.run(once).error == ""
    ran = notebook.run("cluster.restart()")
    assert (
        "but the setup cell" in ran.output
        and "failed when it was run again; lost on the ranks:" in ran.output
    )
    assert "comm" in ran.output and "name 'comm' is not defined" in notebook.run("%%px\ncomm").error
    notebook.run(SETUP)
    works(notebook)


def test_the_cell_that_hangs_is_never_run_again_even_when_it_is_for_setup(notebook):
    ran = notebook.run("%%px --setup\nif rank: comm.Barrier()", within=90)
    assert re.search(RESTARTED, ran.error) or "setup cells run again" in ran.error, ran.text
    works(notebook)


# -------------------------------------------------------------------- as ipyparallel's own


def test_the_clusters_own_timeout_is_the_default(notebook):
    notebook.run("cluster.timeout = 1.5")
    try:
        assert "Not done after 1.5 s" in notebook.run("%%px\ntime.sleep(30)", within=90).error
        assert notebook.run("%%px --timeout 9\ntime.sleep(2)", within=90).error == ""
    finally:
        notebook.run("cluster.timeout = 60")
    works(notebook)


@pytest.mark.parametrize(("targets", "ranks"), [("-1", [3]), ("0,2", [0, 2]), ("1:3", [1, 2])])
def test_targets(notebook, targets, ranks):
    ran = notebook.run(f"%%px --targets {targets}\nprint('here')\nrank * 10")
    assert ran.error == ""
    assert sorted(re.findall(r"\[stdout:(\d)\] here", ran.output)) == [str(rank) for rank in ranks]
    values = {int(rank): int(value) for rank, value in re.findall(r"Out\[(\d):\d+\]: (\d+)", ran.output)}
    assert values == {rank: 10 * rank for rank in ranks}
    works(notebook)


def test_a_target_that_does_not_exist_is_one_sentence(notebook):
    ran = notebook.run("%%px --targets 9\n1")
    assert ran.text.strip() == "UsageError: --targets 9: the ranks are 0 to 3"
    works(notebook)


@pytest.mark.parametrize("timeout", ["0", "nan", "soon"])
def test_a_timeout_that_is_none_is_one_sentence(notebook, timeout):
    ran = notebook.run(f"%%px --timeout {timeout}\nprint('ran')")
    assert re.match(r"UsageError: .*--timeout", ran.output) and "ran" not in ran.output.split()
    works(notebook)


@pytest.mark.slow
def test_local_runs_the_cell_in_the_notebook_too_and_is_guarded(notebook):
    ran = notebook.run("%%px --local\nhere = 'both'\nprint(here)")
    assert ran.output.count("both") == 5 and notebook.run("print(here)").output == "both\n"
    ran = notebook.run("%%px --local --timeout 1\nif 'comm' in globals(): comm.recv(source=0)", within=90)
    assert "Not done after 1 s" in ran.error
    works(notebook)


def test_out_keeps_the_result(notebook):
    notebook.run("%%px --out kept\nrank * 2")
    ran = notebook.run("print([reply.execute_result['data']['text/plain'] for reply in kept.get()])")
    assert ran.output == "['0', '2', '4', '6']\n"


@pytest.mark.slow
def test_no_stream_prints_by_rank_at_the_end(notebook):
    ran = notebook.run("%%px --no-stream\nprint('one', rank); rank")
    assert [int(n) for n in re.findall(r"one (\d)", ran.output)] == [0, 1, 2, 3]
    ran = notebook.run(
        "%%px --no-stream --timeout 1\nprint('before', rank)\nif rank: comm.Barrier()", within=90
    )
    assert "[stdout:0] before 0" in ran.output and "Not done after 1 s" in ran.error
    works(notebook)


def test_the_line_magic_and_autopx_are_guarded_too(notebook):
    assert notebook.run("%px print(rank + 40)").output.count("4") >= 4
    assert "cell line 1   1 / 0" in notebook.run("%px 1 / 0").error
    notebook.run("cluster.timeout = 1")
    assert "Not done after 1 s" in notebook.run("%px comm.recv(source=0)", within=90).error
    notebook.run("%autopx")
    ran = notebook.run("while True: time.sleep(0.1)", within=90)
    assert "Not done after 1 s" in ran.text
    notebook.run("%autopx")
    notebook.run("cluster.timeout = 60")
    works(notebook)


def test_a_cell_in_the_background_that_hangs_is_reported_by_the_next(notebook):
    number = notebook.run("%%px --noblock\ncomm.recv(source=(rank + 1) % size)").number
    ran = notebook.run("%%px\ncomm.Barrier()", within=90)
    assert "no rank can go on" in ran.error
    assert len(re.findall(rf"cell line 2 .*\(of cell \[{number}\], still running\)", ran.error)) == 4, (
        ran.text
    )
    works(notebook)


@pytest.mark.slow
def test_pxresult_waits_for_a_cell_in_the_background_but_not_for_ever(notebook):
    notebook.run("%%px --noblock\ntime.sleep(1)\nprint('done', rank)")
    assert notebook.run("%pxresult").output.count("done") == 4
    notebook.run("%%px --noblock\ncomm.Barrier()\nif rank == 1: comm.recv(source=0)")
    ran = notebook.run("%pxresult", within=90)
    assert "rank 1 is in recv from rank 0, but rank 0 has finished" in ran.error
    works(notebook)


def test_a_wait_for_a_rank_that_computes_in_the_background_is_no_standstill(notebook):
    notebook.run(
        f"%%px --noblock --targets 0\nend = time.time() + {STANDSTILL + 2}\n"
        "while time.time() < end: pass\ncomm.send('late', dest=1)"
    )
    ran = notebook.run("%%px --targets 1\nprint(comm.recv(source=0))", within=90)
    assert ran.error == "" and "late" in ran.output
    works(notebook)


@pytest.mark.slow
def test_cells_of_the_kernel_keep_their_variables_through_all_this(notebook):
    notebook.run("kept = 41")
    notebook.run("%%px\nif rank: comm.Barrier()", within=90)
    assert notebook.run("print(kept + 1)").output == "42\n"


# ------------------------------------- last: it adds a setup cell to the notebook


ROWS = """
grid = comm.Create_cart([2, 2])
row, column = grid.Sub([False, True]), grid.Sub([True, False])
if rank < 2:
    row.Barrier()
twins = [row.Dup(), row.Dup(), column.Dup()]
requests = [twin.Iallreduce(np.ones(1), np.empty(1)) for twin in twins[:: 1 if rank % 3 else -1]]
MPI.Request.Waitall([*requests, column.Ibarrier()])
for twin in twins:
    twin.Free()
row.allreduce(rank, op=MPI.MAX if rank < 2 else MPI.SUM)
"""


def test_right_calls_on_rows_and_columns_raise_no_alarm_in_whatever_cells_they_stand(notebook):
    cells = [
        f"%%px --setup\n{ROWS}",
        "%%px --targets 0,1\nrow.bcast(rank, root=1)",
        "%%px --targets 3\nx = row.bcast(rank, root=1)",  # on its row it is the root, which waits for nobody
        "%%px\nrow.bcast(rank, root=rank // 2)",  # what the others have not called is not called here either
        "%%px --targets 2\nx = row.bcast(None, root=1)",
        "%%px\nif row.rank:\n    row.send(rank, 0)\nelse:\n    row.recv()",
        f"%%px\n{ROWS}",
    ]
    for cell in cells:
        ran = notebook.run(cell, within=60)
        assert ran.error == "", ran.text
    ended = notebook.run("%%px\nimport os\nif rank == 1: os._exit(0)", within=90)  # the setup cells run again
    assert "setup cells run again" in ended.error
    for cell in (f"%%px\n{ROWS}", "%%px\nrow.Barrier()"):
        assert notebook.run(cell, within=60).error == ""
