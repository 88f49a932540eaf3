"""A link of limited rate: what a token bucket lets through, how long a collective takes, what was sent.

A network limits a rate with a token bucket (tc-tbf(8)): it holds up to `burst_nbytes` and is refilled at the
rate. A message takes its bytes out of it; once it is empty, each further byte waits for the refill.

    seconds │             ／      α + (overhead · m - burst) / rate, the message has emptied the bucket
            │          ／
          α │────────＇           the bucket had enough
            └─────────────── bytes m

One line, Hockney's, cannot fit both parts. And what a message takes depends on what was sent before: while
ranks add numbers, or wait for α, the bucket is refilled, and the next message makes up for that time. So
`predict_link_seconds` keeps account of the bucket through the steps of a collective.

Neither of the two fitted numbers, α and the overhead, contains the rate. So links fitted at two rates predict
a third. Packets of 1,514 bytes that carry 1,448 make an overhead of 1.046; MPI's own headers come on top.

Not in the model: ranks that wait for a core, and the question and answer of a rendezvous, which wait behind
what goes the other way. Idle times below a millisecond cost nothing, as the bucket is refilled meanwhile.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from course_lib.theory.cost_model import Cost, Machine

SHORT, LONG = 0.8, 4.0  # of the burst: what surely is in the bucket, and what surely has emptied it


@dataclass(frozen=True, slots=True)
class LimitedLink:
    """A link with the bucket that limits each of its directions; fitted are the last two numbers."""

    rate_bit_per_s: float
    burst_nbytes: float
    alpha_seconds: float
    overhead: float  # bytes on the link per byte of a message: headers

    @property
    def beta_seconds_per_byte(self) -> float:
        """Of a long message; its inverse is the bandwidth."""
        return 8 * self.overhead / self.rate_bit_per_s

    def at(self, rate_bit_per_s: float, burst_nbytes: float) -> "LimitedLink":
        """The same link, limited differently."""
        return replace(self, rate_bit_per_s=rate_bit_per_s, burst_nbytes=burst_nbytes)

    def refilled(self, tokens: float, seconds: float) -> float:
        """The bytes in the bucket when `seconds` have passed."""
        return min(self.burst_nbytes, tokens + seconds * self.rate_bit_per_s / 8)

    def send(self, tokens: float, nbytes: float) -> tuple[float, float]:
        """Seconds of a message that finds `tokens` bytes in the bucket, and the bytes it leaves there."""
        tokens = self.refilled(tokens, self.alpha_seconds)
        needed = self.overhead * nbytes
        waiting = max(0.0, 8 * (needed - tokens) / self.rate_bit_per_s)
        return self.alpha_seconds + waiting, max(0.0, tokens - needed)


def predict_link_seconds(cost: Cost, link: LimitedLink, local: Machine) -> float:
    """Seconds of a collective each of whose steps crosses the link; `local` says what adding takes.

    The link was idle before, so its bucket is full.
    """
    tokens = link.burst_nbytes
    seconds = local.copy_seconds(cost.copied_nbytes) if cost.copied_nbytes else 0.0
    for step in [each for each in cost.steps for _ in range(each.times)]:
        took, tokens = link.send(tokens, step.nbytes)
        idle = (step.pieces - 1) * link.alpha_seconds
        idle += local.sum_seconds(step.nbytes) if step.summed else 0.0
        seconds, tokens = seconds + took + idle, link.refilled(tokens, idle)
    return seconds


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured message: it crossed a link of this rate and burst, idle before, in so many seconds."""

    rate_bit_per_s: float
    burst_nbytes: float
    nbytes: int
    seconds: float


def fit_limited_link(samples: Sequence[Sample]) -> LimitedLink:
    """The link, at the rate of the first sample, that messages of several sizes and rates were measured on.

    Messages well below the burst show α, those far above it the overhead: a median of each. Raises ValueError
    when one of the two kinds is missing.
    """
    short = [each for each in samples if each.nbytes <= SHORT * each.burst_nbytes]
    long = [each for each in samples if each.nbytes >= LONG * each.burst_nbytes]
    if not short or not long:
        raise ValueError(
            f"{len(short)} messages below {SHORT:g} and {len(long)} above {LONG:g} times the burst of the "
            "link; measure one of each"
        )
    alpha = statistics.median(each.seconds for each in short)
    overhead = statistics.median(
        ((each.seconds - alpha) * each.rate_bit_per_s / 8 + each.burst_nbytes) / each.nbytes for each in long
    )
    first = samples[0]
    return LimitedLink(first.rate_bit_per_s, first.burst_nbytes, alpha, overhead)


# ---------------------------------------------------------------- counted


def device_nbytes(device: str = "eth0") -> int:
    """Bytes that all processes of this node have sent through a network device, as Linux counts them.

    So MPI's own collectives and the headers of packets count. A long packet that is cut up later, as TCP
    sends it (GSO), counts with one header. Raises ValueError when the node has no such device.
    """
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    counts = {name.strip(): numbers.split() for name, _, numbers in (line.partition(":") for line in lines)}
    if device not in counts:
        raise ValueError(f"there is no network device {device}; this node has {', '.join(counts)}")
    return int(counts[device][8])  # after eight numbers of what was received
