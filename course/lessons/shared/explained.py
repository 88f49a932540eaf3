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


def why_longer(ratio: float, ranks: int, cores: int) -> str:
    """Why `ranks` times the job on `ranks` ranks takes `ratio` times as long as the job on one rank."""
    least = max(1.0, ranks / cores)
    room = f"{number(cores)} core{'s' * (cores != 1)}"
    free = room.replace(" ", " free ")
    ideal = "as long" if least == 1 else "twice as long" if least == 2 else f"{least:.3g} times as long"
    if ratio < least / 1.1:
        allow = "allow" if cores > 1 else "allows"
        return f"That is faster than {room} {allow}, so the time on one rank was disturbed. {BUSY}"
    if ratio > least / NEAR:
        return f"On {free}, it should take about {ideal}. Here it took longer: {slow(cores)}"
    if ranks > cores:
        verb = "have" if cores > 1 else "has"
        work = f"the work of {number(ranks)} ranks"
        return f"{room.capitalize()} {verb} to do {work}, which takes about {ideal}."
    return "Each rank has its own core and does as much work as the single rank did."


def slow(cores: int) -> str:
    """What may have kept the ranks from what `cores` free cores allow."""
    if cores == 1:
        return "other programs were using the core."
    return "other programs were using the cores, or two cores are hardware threads of one physical core."


def number(value: int) -> str:
    """A small number as a word."""
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
    return words[value] if 0 <= value < len(words) else str(value)
