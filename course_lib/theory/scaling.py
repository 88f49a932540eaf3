"""What to expect of more ranks, before measuring, and how to read what was measured.

A job has a part that only one rank can do and a part that all share. Amdahl (1967) fixes the job: with a
serial share s, n ranks make it at most 1 / (s + (1-s)/n) times faster, never more than 1/s. Gustafson (1988)
fixes the time: more ranks take a larger job, and with a serial share s of that time they do n - s(n-1)
times as much. The first is strong scaling, the second weak scaling.
"""


def amdahl_speedup(serial_fraction: float, ranks: int) -> float:
    """The bound on the speed-up of a fixed job on `ranks` ranks, when `serial_fraction` of it is not shared.

    `serial_fraction` is a share of the one-rank time, from 0 to 1; the result has no unit. Amdahl (1967),
    "Validity of the single processor approach to achieving large scale computing capabilities".
    """
    _check_share(serial_fraction, ranks)
    return 1 / (serial_fraction + (1 - serial_fraction) / ranks)


def gustafson_speedup(serial_fraction: float, ranks: int) -> float:
    """How many times more `ranks` ranks do in the same time, when the job grows with them.

    `serial_fraction` is a share of the time on `ranks` ranks, from 0 to 1, in which only one works; the
    result has no unit. Gustafson (1988), "Reevaluating Amdahl's law".
    """
    _check_share(serial_fraction, ranks)
    return ranks - serial_fraction * (ranks - 1)


def _check_share(serial_fraction: float, ranks: int) -> None:
    if not 0 <= serial_fraction <= 1 or ranks < 1:
        raise ValueError(
            f"{serial_fraction} of the work on {ranks} ranks; give a share from 0 to 1, and 1 rank or more"
        )


def parallel_efficiency(speedup: float, ranks: int) -> float:
    """The share of the ranks' time that was of use: 1 when n ranks are n times faster. No unit."""
    if ranks < 1:
        raise ValueError(f"{ranks} ranks do no work; give 1 or more")
    return speedup / ranks


def karp_flatt_fraction(speedup: float, ranks: int) -> float:
    """The serial share that explains a measured speed-up: Amdahl's formula, solved for it; needs 2 ranks.

    Above 0 it stands for all that did not shrink: start-up, communication, waiting. Below 0 the ranks were
    faster than n times one, by a larger cache or by noise. Karp and Flatt (1990), "Measuring parallel
    processor performance".
    """
    if ranks < 2:
        raise ValueError(f"{ranks} ranks share nothing; give the speed-up of 2 or more")
    return (1 / speedup - 1 / ranks) / (1 - 1 / ranks)
