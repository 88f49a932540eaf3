"""Nodes that Slurm grants, by commands that only pretend (test_slurm_in_a_lab.py has a real Slurm)."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mpi_classroom import cluster, slurm
from mpi_classroom.errors import ClusterError
from mpi_classroom.several_hosts import SeveralHosts
from mpi_classroom.slurm import Slurm
from packages.mpi_classroom.tests.waiting import until

RUNNING = (
    "JobId=7 JobName=notebook JobState=RUNNING Reason=None Dependency=(null) TimeLimit=01:00:00 "
    "EndTime=2001-02-03T04:05:06 NodeList=n[1-3] NumNodes=3 NumCPUs=7 JOB_GRES=(null) "
    "Nodes=n[1-2] CPU_IDs=0-1,8 Mem=0 GRES= Nodes=n3 CPU_IDs=0 Mem=0 GRES= MinCPUsNode=1"
)
# Each keeps what it was asked; `job` has what scontrol says, one line per question, the last one for ever.
FAKE = """#!/bin/sh
name=${0##*/}
echo "$name $*" >> "$SLURM_CONF/asked"
cd "$SLURM_CONF"
test -e "$name.fails" && { cat "$name.fails" >&2; exit 1; }
case "$name $*" in
  sbatch*) cat > script; echo "7;cluster";;
  "scontrol show hostnames n[1-2]") echo n1; echo n2;;
  "scontrol show hostnames"*) echo "$3";;
  scontrol*) head -n 1 job; test $(wc -l < job) = 1 || sed -i 1d job;;
  scancel*) echo "JobId=7 JobState=CANCELLED Reason=None" > job;;
esac
"""


class Fake:
    """A Slurm that says what the test wants."""

    def __init__(self, folder):
        self.folder = folder

    def says(self, *lines):
        (self.folder / "job").write_text("".join(f"{line}\n" for line in lines))

    def fails(self, command, words):
        (self.folder / f"{command}.fails").write_text(f"{words}\n")

    def asked(self, command):
        path = self.folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.removeprefix(f"{command} ") for line in lines if line.startswith(f"{command} ")]


@pytest.fixture
def fake(tmp_path, monkeypatch):
    for name in ("sbatch", "scancel", "scontrol", "srun"):
        (tmp_path / name).write_text(FAKE)
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path))
    monkeypatch.setattr(slurm, "ASK_SECONDS", 0.0)
    fake = Fake(tmp_path)
    fake.says(RUNNING)
    return fake


def pending(reason):
    return f"JobId=7 JobState=PENDING Reason={reason} TimeLimit=UNLIMITED NodeList= NumCPUs=4"


def test_where_the_ranks_are_to_run(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert cluster.granted(4, None) is None and cluster.granted(4, ["n1"]) == ["n1"]
    assert cluster.granted(4, "slurm").asked == ("slurm", "", "")
    with pytest.raises(ValueError, match='sbatch= needs hosts="slurm"'):
        cluster.granted(4, None, "--nodes=2")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert cluster.granted(4, None) is None
    assert cluster.granted(4, "slurm").asked == ("slurm", "7", "")
    assert cluster.granted(4, "slurm", "--nodes=2").asked == ("slurm", "", "--nodes=2")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert cluster.granted(4, None).asked == ("slurm", "7", "")
    assert cluster.granted(4, ["localhost"]) is None


def test_an_allocation_gives_its_nodes_and_stays(fake):
    nodes = Slurm(4, job="7")
    assert nodes.hosts() == [("n1", 3), ("n2", 3), ("n3", 1)]
    assert nodes.until == "2001-02-03 04:05" and nodes.over() == ""
    nodes.release()
    assert fake.asked("sbatch") == fake.asked("scancel") == []


def test_a_job_is_submitted_waited_for_and_cancelled(fake):
    fake.says(pending("None"), pending("Resources"), pending("Priority"), RUNNING)
    nodes, lines = Slurm(4, options="--nodes=3 --comment='a b'"), []
    assert nodes.hosts(lines.append) == [("n1", 3), ("n2", 3), ("n3", 1)]
    assert lines == [
        "Slurm job 7 waits in the queue, 0:00: Slurm has not looked at it yet",
        "Slurm job 7 waits in the queue, 0:00: the nodes are busy",
        "Slurm job 7 waits in the queue, 0:00: other jobs come first",
    ]
    (asked,) = fake.asked("sbatch")
    assert asked.endswith("--no-kill --no-requeue --ntasks=4 --nodes=3 --comment=a b")
    assert "sleep infinity" in (fake.folder / "script").read_text()
    nodes.release()
    nodes.release()
    assert fake.asked("scancel") == ["7"]


def test_a_slurm_that_is_too_busy_to_answer_once_does_not_end_the_wait(fake):
    def say(text):
        lines.append(text)
        (fake.folder / "scontrol.fails").unlink()

    fake.fails("scontrol", "slurm_load_jobs error: Socket timed out on send/recv operation")
    nodes, lines = Slurm(4), []
    assert len(nodes.hosts(say)) == 3
    assert lines == ["Slurm job 7 waits in the queue, 0:00: Slurm does not answer"]
    nodes.release()


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("PartitionTimeLimit", r"more time than its partition allows; .*--time=30"),
        ("PartitionNodeLimit", r"more nodes than its partition allows; .*--nodes=2"),
    ],
)
def test_a_job_that_can_never_start_is_cancelled_at_once(fake, reason, words):
    fake.says(pending(reason))
    with pytest.raises(ClusterError, match=f"^Slurm cannot start job 7: it asks for {words}"):
        Slurm(4).hosts()
    assert fake.asked("scancel") == ["7"]


def test_a_full_partition_ends_the_wait_at_its_deadline(fake):
    fake.says(pending("Resources"))
    words = r"within 0\.001 minutes: the nodes are busy; ask for fewer .* wait longer: queue_minutes="
    with pytest.raises(ClusterError, match=words):
        Slurm(4, minutes=0.001).hosts()
    assert fake.asked("scancel") == ["7"]


def test_a_learner_who_interrupts_the_wait_leaves_no_job(fake):
    def interrupted(text):
        raise KeyboardInterrupt

    fake.says(pending("Resources"))
    with pytest.raises(KeyboardInterrupt):
        Slurm(4).hosts(interrupted)
    assert fake.asked("scancel") == ["7"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Invalid partition name specified", "sinfo --summarize"),
        ("Invalid account or account/partition combination specified", "--account=NAME"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "--time=30"),
        ("Something new", "correct the options: sbatch='-x'"),
    ],
)
def test_a_job_that_slurm_does_not_take(fake, said, words):
    fake.fails("sbatch", f"sbatch: error: first\nsbatch: error: Batch job submission failed: {said}\n")
    with pytest.raises(ClusterError, match=re.escape(f"Slurm refuses the job: {said}; ")) as error:
        Slurm(4, options="-x").hosts()
    assert words in str(error.value) and fake.asked("scancel") == []


def test_a_machine_without_slurm(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"no command `sbatch` on this machine; start .* login node"):
        Slurm(4).hosts()
    with pytest.raises(ClusterError, match=r"no command `scontrol`"):
        Slurm(4, job="7").hosts()


def test_a_slurm_that_does_not_answer(fake):
    fake.fails("scontrol", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    words = r"does not say how job 7 is: Unable to contact slurm controller .*; wait until `sinfo` answers"
    with pytest.raises(ClusterError, match=words):
        Slurm(4, job="7").hosts()
    assert Slurm(4, job="7").over() == "", "nothing is known"


def test_an_allocation_that_has_expired(fake):
    fake.says("JobId=7 JobState=TIMEOUT Reason=TimeLimit TimeLimit=00:30:00 EndTime=2001-02-03T04:05:06")
    words = (
        r"^Slurm job 7 has ended \(its time limit was 00:30:00\); get a new allocation with more time \(sal"
    )
    with pytest.raises(ClusterError, match=words):
        Slurm(4, job="7").hosts()
    fake.fails("scontrol", "slurm_load_jobs error: Invalid job id specified")
    with pytest.raises(ClusterError, match=r"job 7 has ended \(Slurm does not know it any more\); get a new"):
        Slurm(4, job="7").hosts()


def test_a_job_of_our_own_that_reached_its_time_limit(fake):
    nodes = Slurm(4)
    nodes.hosts()
    assert nodes.over() == ""
    fake.says("JobId=7 JobState=TIMEOUT Reason=TimeLimit TimeLimit=00:30:00")
    words = "Slurm job 7 has ended (its time limit was 00:30:00); start a new one, for longer: start_cluster("
    assert nodes.over().startswith(words)
    nodes.release()


def test_a_job_is_cancelled_when_the_process_that_wanted_it_is_killed(fake):
    code = "from mpi_classroom.slurm import Slurm; s = Slurm(4); s.hosts(); print(1, flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as process:
        assert process.stdout.readline() == b"1\n"
        process.kill()
    until(lambda: fake.asked("scancel") == ["7"], 20)


def test_srun_runs_a_command_line_on_a_node_without_the_variables_of_the_job_around_it(fake, monkeypatch):
    (fake.folder / "srun").write_text('#!/bin/sh\necho "$*"\nenv\n')
    monkeypatch.setenv("SLURM_NTASKS", "9")
    monkeypatch.setenv("COURSE_VALUE", "x")
    shell = Slurm(4, job="7").shell
    said = subprocess.run([*shell, "n2", "echo 'a  b'"], capture_output=True, text=True).stdout.splitlines()
    assert said[0].startswith("--jobid=7 --overlap ") and said[0].endswith(
        "--nodelist=n2 /bin/sh -c echo 'a  b'"
    )
    names = {line.partition("=")[0] for line in said[1:]}
    assert {"HOME", "PATH", "SLURM_CONF"} <= names and not names & {"SLURM_NTASKS", "COURSE_VALUE"}


def test_the_ranks_are_placed_on_the_nodes_and_too_many_are_refused(fake, monkeypatch):
    monkeypatch.setattr("mpi_classroom.several_hosts.HostGroup.connect", lambda *a, **k: 1 / 0)
    hosts = SeveralHosts(6, Slurm(6, job="7"), "ssh")
    with pytest.raises(ZeroDivisionError):
        hosts.connect()
    assert hosts.counts == {"n1": 3, "n2": 2, "n3": 1} and "srun" in hosts.shell
    group = SimpleNamespace(lost=lambda: {"n1": "n1 does not answer: x"}, close=lambda: None)
    monkeypatch.setattr("mpi_classroom.several_hosts.HostGroup.connect", lambda *a, **k: group)
    hosts = SeveralHosts(6, Slurm(6), "ssh")
    with pytest.raises(
        ClusterError, match=r"^n1 does not answer: x; see what this says: srun --jobid=7 .* n1 t"
    ):
        hosts.connect()
    assert fake.asked("scancel") == ["7"], "and only then"
    fake.says(RUNNING)
    with pytest.raises(ClusterError, match=r"job 7 has 7 CPUs \(n1: 3, n2: 3, n3: 1\), too few for 8 ranks"):
        SeveralHosts(8, Slurm(8, job="7"), "ssh").connect()
