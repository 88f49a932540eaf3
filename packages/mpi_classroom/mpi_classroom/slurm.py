"""The nodes that Slurm grants a cluster: those of the allocation around the notebook, or of a job of its own.

    around the notebook   SLURM_JOB_ID names the job. It stays when the cluster stops.
    its own               sbatch takes a job that only holds nodes. It is cancelled when the cluster stops,
                          and when the kernel is killed.

`srun` takes the place of ssh: it runs a command on one node of the job (see `Slurm.shell`). It gets little of
the notebook's environment, because variables of the job around it, such as SLURM_NTASKS, would count as its
options.

See sbatch(1), srun(1) and scontrol(1).
"""

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mpi_classroom.errors import ClusterError

COMMAND_SECONDS = 30.0  # for an answer of Slurm's
ASK_SECONDS = 2.0  # a job is asked about at most this often, but for the first moments
HOLD = "#!/bin/sh\nexec sleep infinity\n"
# A node that fails is taken out of the job, and the job goes on; none of it is run twice.
OPTIONS = ("--parsable", "--job-name=notebook", "--output=/dev/null", "--no-kill", "--no-requeue")
SRUN = ("--overlap", "--unbuffered", "--mpi=none", "--nodes=1", "--ntasks=1")
KEPT = ("HOME", "LANG", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "USER")
BUSY = {
    "None": "Slurm has not looked at it yet",
    "Priority": "other jobs come first",
    "ReqNodeNotAvail": "the nodes are down or reserved",
    "Resources": "the nodes are busy",
}
# Reasons for which a job waits for ever.
TOO_MUCH = 'ask for fewer ranks or nodes; `sinfo --summarize` shows what there is: sbatch="--nodes=2"'
HOPELESS = {
    "PartitionConfig": ("it asks for more than its partition has or allows", TOO_MUCH),
    "PartitionNodeLimit": ("it asks for more nodes than its partition allows", TOO_MUCH),
    "PartitionTimeLimit": (
        "it asks for more time than its partition allows",
        'ask for less, such as half an hour: sbatch="--time=30"',
    ),
    "PartitionDown": ("its partition is down", 'name another one: sbatch="--partition=NAME"'),
    "PartitionInactive": ("its partition is inactive", 'name another one: sbatch="--partition=NAME"'),
    "JobHeldUser": ("it is held", "leave out the option that holds it"),
    "JobHeldAdmin": ("an administrator holds it", "ask them why"),
    "BadConstraints": ("no node has the features that it asks for", "leave out --constraint"),
}
# What sbatch says when it refuses a job, and the remedy; the first entry that fits counts.
REFUSED = (
    ("account", 'name an account that you may use: sbatch="--account=NAME"'),
    ("partition", 'name one that `sinfo --summarize` lists: sbatch="--partition=NAME"'),
    ("time limit", 'ask for less time, such as half an hour: sbatch="--time=30"'),
    ("configuration is not available", TOO_MUCH),
    ("contact slurm controller", "wait until `sinfo` answers"),
)
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JobState:
    """What scontrol says of a job: "RUNNING" and the like, why it waits, its time limit, when it will end.

    `nodes` has (a list such as `n[1-2]`, the CPUs that the job has on each of them) pairs.
    """

    name: str
    reason: str
    limit: str
    end: str
    nodes: tuple[tuple[str, int], ...]

    @property
    def waits(self) -> bool:
        """Whether it has yet to begin."""
        return self.name in ("PENDING", "CONFIGURING")


def read_job(text: str) -> JobState:
    """The state in the text of `scontrol --details --oneliner show job`."""
    fields = dict(re.findall(r"(\S+?)=(\S*)", text))
    nodes = re.findall(r"\bNodes=(\S+) CPU_IDs=(\S+)", text)
    return JobState(
        fields.get("JobState", "UNKNOWN"),
        fields.get("Reason", "None").partition(",")[0],
        fields.get("TimeLimit", "UNLIMITED"),
        fields.get("EndTime", "Unknown"),
        tuple((names, _count(cpus)) for names, cpus in nodes),
    )


def _count(cpus: str) -> int:
    """How many there are in a list such as `0-3,8`."""
    parts = [part.partition("-") for part in cpus.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in parts)


def surrounding_job(environment: Mapping[str, str]) -> str:
    """The number of the allocation of several nodes in which a process with `environment` runs, or ""."""
    several = environment.get("SLURM_JOB_NUM_NODES", "1") not in ("", "0", "1")
    return environment.get("SLURM_JOB_ID", "") if several else ""


class Slurm:
    """The nodes of one job, for `n` ranks.

    The job is number `job`, which runs already; "" means one of our own, submitted by `hosts` with the
    `options` of sbatch, that may wait in the queue for `minutes`.
    """

    def __init__(self, n: int, *, job: str = "", options: str = "", minutes: float = 10.0) -> None:
        self.n, self.options, self.minutes = n, options, minutes
        self.job, self._is_ours = job, not job
        self.asked = ("slurm", job, options)
        self.until = ""  # when the job ends, in words
        self._over, self._asked_at = "", 0.0
        self._guard: subprocess.Popen[bytes] | None = None

    def hosts(self, report: Report = lambda text: None) -> list[tuple[str, int]]:
        """The names of the nodes and the CPUs that the job has on each; may wait in the queue first.

        Raises ClusterError, one sentence with a remedy, and leaves no job of ours behind then.
        """
        _check_commands(("sbatch", "scancel", "scontrol", "srun") if self._is_ours else ("scontrol", "srun"))
        self._over, self._asked_at = "", 0.0
        try:
            if self._is_ours:
                self._submit()
                self._wait(report)
            state = self._state()
            if state is None or state.name != "RUNNING":
                raise ClusterError(self._why_over(state))
            names = [(name, cpus) for nodes, cpus in state.nodes for name in _names(nodes)]
        except BaseException:
            self.release()
            raise
        self.until = "" if state.end == "Unknown" or state.limit == "UNLIMITED" else _clock(state.end)
        return names

    @property
    def shell(self) -> tuple[str, ...]:
        """The command that runs a command on a node, called as ssh is: `(*shell, node, "command line")`."""
        kept = [f'{name}="${name}"' for name in KEPT if name in os.environ]
        if conf := os.environ.get("SLURM_CONF"):  # mpiexec gets no variables of Slurm's
            kept.append(shlex.quote(f"SLURM_CONF={conf}"))
        run = ["env", "-i", *kept, "srun", f"--jobid={self.job}", *SRUN, '--nodelist="$host"']
        return ("/bin/sh", "-c", f'host=$1; shift; exec {" ".join(run)} /bin/sh -c "$*"', "srun")

    @property
    def by_hand(self) -> tuple[str, ...]:
        """The same, short, for people to type: the node and a command follow."""
        return ("srun", f"--jobid={self.job}", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist")

    def over(self) -> str:
        """Why the job runs no longer, one sentence with a remedy; "" while it does."""
        now = time.monotonic()
        if not self._over and now - self._asked_at >= ASK_SECONDS:
            self._asked_at = now
            try:
                state = self._state()
            except ClusterError:  # Slurm does not answer: nothing is known
                return ""
            if state is not None and state.name == "COMPLETING":
                self._asked_at = 0.0  # soon it says how it ended
                return self._why_over(state)
            if state is None or state.name != "RUNNING":
                self._over = self._why_over(state)
        return self._over

    def release(self) -> None:
        """Cancel the job, if it is our own; safe to call twice."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        try:
            _run(["scancel", self.job])
        except ClusterError:
            assert guard.stdin is not None
            guard.stdin.close()  # it tries, too
            return
        guard.kill()
        guard.communicate()

    def _submit(self) -> None:
        """Submit a job that holds nodes; start a shell that cancels it when this process is gone."""
        answer = _run(["sbatch", *OPTIONS, f"--ntasks={self.n}", *shlex.split(self.options)], HOLD)
        if answer.returncode:
            said = _error(answer.stderr)
            remedy = next((words for mark, words in REFUSED if mark in said.lower()), "")
            what = f"Slurm refuses the job: {said}"
            raise ClusterError(f"{what}; {remedy or f'correct the options: sbatch={self.options!r}'}")
        self.job = answer.stdout.strip().partition(";")[0]  # the cluster's name may follow
        watch = 'trap "" HUP INT TERM; read nothing; exec scancel "$0"'
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", watch, self.job],
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _wait(self, report: Report) -> None:
        """Return when the job has left the queue; raise ClusterError when it cannot, or not in time."""
        began = time.monotonic()
        while True:
            try:
                state = self._state()
            except ClusterError:  # a busy Slurm now and then
                why = "Slurm does not answer"
            else:
                if state is None or not state.waits:
                    return
                if state.reason in HOPELESS:
                    why, remedy = HOPELESS[state.reason]
                    raise ClusterError(f"Slurm cannot start job {self.job}: {why}; {remedy}")
                why = BUSY.get(state.reason, state.reason)
            waited = time.monotonic() - began
            if waited > 60 * self.minutes:
                raise ClusterError(
                    f"Slurm did not start job {self.job} within {self.minutes:g} minutes: {why}; ask for "
                    f"fewer nodes or less time (sbatch=…), or wait longer: queue_minutes={6 * self.minutes:g}"
                )
            minutes, seconds = divmod(int(waited), 60)
            report(f"Slurm job {self.job} waits in the queue, {minutes}:{seconds:02}: {why}")
            time.sleep(min(ASK_SECONDS, 0.2 + waited / 10))

    def _state(self) -> JobState | None:
        """What Slurm says of the job; None if it knows none of that number."""
        answer = _run(["scontrol", "--details", "--oneliner", "show", "job", self.job])
        if not answer.returncode:
            return read_job(answer.stdout)
        if "Invalid job id" in answer.stderr:
            return None
        raise ClusterError(
            f"Slurm does not say how job {self.job} is: {_error(answer.stderr)}; wait until `sinfo` answers"
        )

    def _why_over(self, state: JobState | None) -> str:
        late = state is not None and (state.name == "TIMEOUT" or state.reason == "TimeLimit")
        if state is None:
            how = " (Slurm does not know it any more)"
        elif late:
            how = f" (its time limit was {state.limit})"
        else:
            how = "" if state.name == "COMPLETING" else f" ({state.name})"
        what = f"Slurm job {self.job} has ended{how}"
        if not self._is_ours:
            more = "with more time " if late else ""
            return f"{what}; get a new allocation {more}(salloc --no-kill), and start the notebook in it"
        more = ', for longer: start_cluster(…, sbatch="--time=2:00:00")' if late else ": start_cluster(…)"
        return f"{what}; start a new one{more}"


def _names(nodes: str) -> Iterator[str]:
    """The names in a list such as `n[1-2]`."""
    yield from _run(["scontrol", "show", "hostnames", nodes]).stdout.split()


def _clock(end: str) -> str:
    """The time of day in a time such as `2026-11-23T08:54:20`, with its day unless that is today."""
    day, _, clock = end.partition("T")
    return clock[:5] if day == time.strftime("%Y-%m-%d") else f"{day} {clock[:5]}"


def _check_commands(commands: tuple[str, ...]) -> None:
    for command in commands:
        if not shutil.which(command):
            raise ClusterError(
                f"there is no command `{command}` on this machine; start the notebook where Slurm is, such "
                'as the login node of your cluster, or name the hosts: hosts=["n1", "n2"]'
            )


def _environment() -> dict[str, str]:
    """What commands of Slurm's get of this process's environment."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in (*KEPT, "SLURM_CONF") or name.startswith("SBATCH_")
    }


def _run(command: list[str], text: str = "") -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, env=_environment(), input=text, capture_output=True, text=True, timeout=COMMAND_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = "did not answer" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise ClusterError(f"`{command[0]}` of Slurm {why}; wait until `sinfo` answers") from None


def _error(text: str) -> str:
    """The last error in what a command of Slurm's wrote, without its name."""
    lines = (
        [line for line in text.splitlines() if "error" in line.lower()] or text.splitlines() or ["no message"]
    )
    return lines[-1].rpartition(": ")[2].strip()
