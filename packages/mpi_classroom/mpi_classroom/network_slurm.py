"""Slurm in the lab: the batch system of many clusters, on nodes that are none.

    with network(nodes=4) as lab:
        start_slurm(lab)
        subprocess.run(lab.on("head", ["sbatch", "train.sbatch"]), env=lab.environment())

    head   slurmctld keeps the queue; munged signs what the others send
    n1 …   slurmd starts what the queue sends to its node

Programs in the lab find sbatch, squeue, scontrol and the others set up for this Slurm, batch scripts too. It
ends with the lab, and so does a node's slurmd with its node.

A node that does not answer for 10 s counts as down, and a job that lost a node starts again 11 s later at the
earliest. Real clusters wait for minutes.

See slurm.conf(5) and munged(8).
"""

import os
import secrets
import shlex
import shutil
import subprocess
import time
from pathlib import Path

from mpi_classroom.network import TOOL_FOLDERS, Lab
from mpi_classroom.network_commands import HEAD, NetworkError, address

PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
}
CLIENTS = ("sbatch", "srun", "salloc", "squeue", "scontrol", "sinfo", "scancel")
START_SECONDS = 30.0
SILENT_SECONDS, CREDENTIAL_SECONDS = 10, 10


def start_slurm(lab: Lab) -> None:
    """Start Slurm in `lab`; its nodes, each with as many CPUs as slots, are the partition `lab`.

    Raises NetworkError, with what to do, where that is not possible.
    """
    tools = find_slurm(os.geteuid())
    folder = lab.folder / "slurm"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise NetworkError(
            "Slurm runs in this lab already; submit a job, or make a new lab for a new one"
        ) from None
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    conf = folder / "slurm.conf"
    conf.write_text(conf_text(folder, lab.nodes, lab.slots))
    for name in CLIENTS:
        lab.add_command(name, client_text(tools / name, conf))
    names = ("socket", "key", "log", "pid", "seed")
    files = [f"--{name}{'' if name == 'socket' else '-file'}={folder / f'munge.{name}'}" for name in names]
    # --force: the folder is closed to other users, and munged would have them all come in
    start(lab, HEAD, ["munged", "--force", "--num-threads=1", *files])
    start(lab, HEAD, ["slurmctld", "-f", str(conf)])
    for node in lab.nodes:
        start(lab, node, ["slurmd", "-N", node, "-f", str(conf)])
    wait_until_idle(lab)


def find_slurm(user: int) -> Path:
    """The folder with Slurm's commands; NetworkError unless they are installed and this user is root."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *TOOL_FOLDERS])
    for tool, package in PACKAGES.items():
        if not shutil.which(tool, path=path):
            raise NetworkError(
                f"there is no command `{tool}`, of the package {package}; on Debian or Ubuntu: "
                f"sudo apt install --no-install-recommends {' '.join(dict.fromkeys(PACKAGES.values()))}"
            )
    if user != 0:
        raise NetworkError("Slurm's daemons start jobs as any user, so they need root; try it as root")
    return Path(shutil.which("sbatch", path=path) or "").parent


def conf_text(folder: Path, nodes: tuple[str, ...], slots: int) -> str:
    """slurm.conf: no accounting, no control groups, and short waits for a node that is gone.

    A requeued job waits until its old permit to run, the credential, has expired: 120 s unless we say so.
    """
    machines = "".join(
        f"NodeName={node} NodeAddr={address(node)} CPUs={slots} Sockets={slots} State=UNKNOWN\n"
        for node in nodes
    )
    return f"""\
ClusterName=lab
SlurmctldHost={HEAD}({address(HEAD)})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={CREDENTIAL_SECONDS}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SlurmdParameters=config_overrides
SlurmdTimeout={SILENT_SECONDS}
ReturnToService=2
{machines}PartitionName=lab Nodes={",".join(nodes)} Default=YES MaxTime=INFINITE State=UP
"""


def client_text(tool: Path, conf: Path) -> str:
    """The shell script that stands for a command of Slurm: in its jobs mpiexec asks Slurm, not the lab."""
    return f"""\
#!/bin/sh
unset PRTE_MCA_prte_default_hostfile PRTE_MCA_plm_ssh_agent
export SLURM_CONF={shlex.quote(str(conf))}
exec {shlex.quote(str(tool))} "$@"
"""


def start(lab: Lab, host: str, daemon: list[str]) -> None:
    """Start a daemon, which goes into the background by itself; NetworkError if it does not."""
    log = lab.folder / "slurm" / f"{daemon[0]}-{host}.out"
    with log.open("w") as output:
        code = subprocess.run(
            lab.on(host, daemon),
            env=lab.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=START_SECONDS,
        ).returncode
    if code:
        raise NetworkError(not_started(f"{daemon[0]} on {host} ended with exit code {code}", [log]))


def wait_until_idle(lab: Lab) -> None:
    """Return when all nodes wait for jobs; NetworkError when that takes too long."""
    ask = lab.on(HEAD, ["sinfo", "--noheader", "--Node", "--format=%T"])
    deadline = time.monotonic() + START_SECONDS
    while True:
        states = subprocess.run(ask, env=lab.environment(), capture_output=True, text=True).stdout.split()
        if states == ["idle"] * len(lab.nodes):
            return
        if time.monotonic() > deadline:
            logs = sorted((lab.folder / "slurm").glob("*.log"))
            raise NetworkError(not_started(f"its nodes are {', '.join(states) or 'unknown'}", logs))
        time.sleep(0.1)


def not_started(what: str, logs: list[Path]) -> str:
    """A sentence with the last error that is in `logs`."""
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if "error" in line or "fatal" in line] or lines or ["no message"]
    return f"Slurm did not start: {what} ({errors[-1].strip()}); take the lab down and try again"
