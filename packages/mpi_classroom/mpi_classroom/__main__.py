"""The command `mpi-classroom`: check this machine, end leftover clusters.

mpi-classroom doctor                check whether this machine is ready for a cluster
mpi-classroom doctor --hosts FILE   check whether these hosts are ready for a cluster over all of them
mpi-classroom clean [--all]         end clusters of killed notebooks and killed labs; --all: also those in use
"""

import argparse
import shlex
from collections.abc import Sequence

from mpi_classroom import doctor, leftovers
from mpi_classroom.layout import SSH


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 1 when the doctor finds something to repair."""
    parser = argparse.ArgumentParser(prog="mpi-classroom", description="An MPI cluster for notebooks.")
    commands = parser.add_subparsers(dest="command", required=True)
    checks = commands.add_parser(
        "doctor", help="check whether this machine, or others, are ready for a cluster"
    )
    checks.add_argument("--hosts", metavar="FILE", help="a hostfile, with lines such as: n1 slots=2")
    checks.add_argument(
        "--agent",
        metavar="COMMAND",
        default=shlex.join(SSH),
        help="runs a command on a host (default: %(default)s)",
    )
    clean = commands.add_parser(
        "clean", help="end the clusters of notebooks that were killed, and killed labs"
    )
    clean.add_argument("--all", action="store_true", help="also end clusters and labs in use")
    options = parser.parse_args(arguments)
    if options.command == "clean":
        print("\n".join(leftovers.clean(everything=options.all)) or "No process was left behind.")
        return 0
    hosts, agent = options.hosts, shlex.split(options.agent)
    found = doctor.examine_hosts(hosts, agent) if hosts else list(doctor.examine())
    print("\n".join(check.line() for check in found))
    return 0 if all(check.ok for check in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
