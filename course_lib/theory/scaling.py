"""What to expect of more ranks, before measuring, and how to read what was measured.

A job has a serial part, which only one rank can do, and a parallel part, which all ranks do together. Amdahl
(1967) fixes the job: with a serial fraction s, the speed-up on n ranks is at most 1 / (s + (1-s)/n), and
never more than 1/s. That is strong scaling; weak scaling lets the job grow with the ranks (Gustafson 1988).
"""


def amdahl_speedup(serial_fraction: float, ranks: int) -> float:
    """The largest speed-up of a fixed job on `ranks` ranks when only one can do `serial_fraction` of it.

    `serial_fraction` is a fraction of the one-rank time, from 0 to 1; the result has no unit.
    Amdahl (1967), "Validity of the single processor approach to achieving large scale computing
    capabilities".
    """
    _check_share(serial_fraction, ranks)
    return 1 / (serial_fraction + (1 - serial_fraction) / ranks)


def _check_share(serial_fraction: float, ranks: int) -> None:
    if not 0 <= serial_fraction <= 1 or ranks < 1:
        raise ValueError(
            f"{serial_fraction} of the work on {ranks} ranks; give a fraction from 0 to 1, and 1 rank or more"
        )


def karp_flatt_fraction(speedup: float, ranks: int) -> float:
    """The serial fraction that would explain a measured speed-up: Amdahl's law solved for it. No unit.

    It stands for all that did not shrink: start-up, communication, waiting. It is negative when n ranks were
    more than n times as fast as one, through more cache or through noise. Raises ValueError below 2 ranks.
    Karp and Flatt (1990), "Measuring parallel processor performance".
    """
    if ranks < 2:
        raise ValueError(f"{ranks} ranks share nothing; give the speed-up of 2 or more")
    return (1 / speedup - 1 / ranks) / (1 - 1 / ranks)
