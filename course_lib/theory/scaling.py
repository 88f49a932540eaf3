"""How to read a measured speed-up: the serial fraction that would explain it."""


def karp_flatt_fraction(speedup: float, ranks: int) -> float:
    """The serial fraction that would explain a measured speed-up: Amdahl's law solved for it. No unit.

    It stands for all that did not shrink: start-up, communication, waiting. It is negative when n ranks were
    more than n times as fast as one, through more cache or through noise. Raises ValueError below 2 ranks.
    Karp and Flatt (1990), "Measuring parallel processor performance".
    """
    if ranks < 2:
        raise ValueError(f"{ranks} ranks share nothing; give the speed-up of 2 or more")
    return (1 / speedup - 1 / ranks) / (1 - 1 / ranks)
