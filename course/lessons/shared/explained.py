"""Why a measured speed-up is what it is, in a sentence that the measurement supports on any machine."""

NEAR = 0.85  # of what the cores allow: less than that needs another explanation
BUSY = "Other programs may be using the cores."


def why_speedup(speedup: float, ranks: int, cores: int) -> str:
    """Why the same job on `ranks` ranks and `cores` cores is `speedup` times as fast as on one rank."""
    most = min(ranks, cores)
    room = f"{number(cores)} core{'s' * (cores != 1)}"
    free = room.replace(" ", " free ")
    if speedup > 1.1 * most:
        return f"That is more than {room} can gain, so the time on one rank was disturbed. {BUSY}"
    if speedup < NEAR * most:
        return f"On {free}, {number(ranks)} ranks should come near {most}. Here they don't: {slow(cores)}"
    if cores == 1:
        return "There is one core, and all ranks share it."
    if ranks > cores:
        return f"{number(ranks).capitalize()} ranks share {room}, so the speed-up ends near {cores}."
    return f"Each of the {number(ranks)} ranks has a core, and they hardly have to wait for each other."


def why_no_fraction(speedups: tuple[float, float, float], ranks: int, cores: int) -> str:
    """Why a low, a median and a high speed-up on `ranks` ranks give no serial fraction; "" where they do."""
    low, median, _ = speedups
    nothing = "this measurement says nothing about the serial fraction."
    if cores < ranks:
        room = "one core" if cores == 1 else f"{number(cores)} cores"
        return f"{number(ranks).capitalize()} ranks share {room}: {nothing}"
    if low <= 1 or not NEAR * ranks <= median <= 1.1 * ranks:
        return f"The cores were busy, or are hardware threads of one physical core: {nothing}"
    return ""


def slow(cores: int) -> str:
    """What may have kept the ranks from what `cores` free cores allow."""
    if cores == 1:
        return "other programs were using the core."
    return "other programs were using the cores, or two cores are hardware threads of one physical core."


def number(value: int) -> str:
    """A small number as a word."""
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
    return words[value] if 0 <= value < len(words) else str(value)
