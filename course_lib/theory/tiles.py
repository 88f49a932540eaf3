"""Tiles of an image and their halos: which pixels a tile needs of which other, one dimension at a time.

    image      0  1  2  3  4 | 5  6  7  8  9         two tiles; a convolution with kernel 3 and padding 1
    tile 0   . 0  1  2  3  4   5                     needs pixel 5 of tile 1; the dot is the image's padding
    tile 1                4    5  6  7  8  9 .       needs pixel 4 of tile 0

Any kernel, stride, padding and dilation is a `Window`; which inputs an output needs is all there is to
know. The outputs of a layer are distributed evenly over the tiles, whatever they had of its inputs. Dryden
et al. (2019), "Improving Strong-Scaling of CNN Training by Exploiting Finer-Grained Parallelism"; Jain et
al. (2022), "Hy-Fi", for several layers with one exchange.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Piece = tuple[int, range]  # a rank, and pixels of the image


@dataclass(frozen=True, slots=True)
class Window:
    """What a convolution or pooling sees along one dimension; `before` and `after` are its padding."""

    kernel: int
    stride: int = 1
    before: int = 0
    after: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Pixels from the first that an output sees to the last, both counted."""
        return self.dilation * (self.kernel - 1) + 1

    def outputs(self, length: int) -> int:
        """How many outputs `length` inputs make; ValueError when there would be none."""
        padded = length + self.before + self.after
        if padded < self.reach:
            raise ValueError(
                f"a window of {self.reach} pixels does not fit into {padded}, padding included; "
                "use a larger image or a smaller kernel"
            )
        return (padded - self.reach) // self.stride + 1

    def needs(self, outputs: range) -> range:
        """The inputs of `outputs`, which may lie outside the image; none for no outputs."""
        first = outputs.start * self.stride - self.before
        if not outputs:
            return range(first, first)
        last = first + (len(outputs) - 1) * self.stride  # the first pixel that the last output sees
        return range(first, last + self.reach)


@dataclass(frozen=True, slots=True)
class Halo:
    """What one tile has along a dimension, and what it needs; all pixels are numbered as in the full image.

    `sends` and `receives` are other ranks, and the pixels that go to them or come from them. What is needed
    and no rank owns lies outside the image.
    """

    owned: range
    needed: range
    sends: tuple[Piece, ...]
    receives: tuple[Piece, ...]

    @property
    def kept(self) -> range:
        """What this tile needs of its own."""
        # `overlap`, but inside `needed` also when it is empty: then before + after are all that is needed
        start = min(max(self.owned.start, self.needed.start), self.needed.stop)
        return range(start, max(start, min(self.owned.stop, self.needed.stop)))

    @property
    def before(self) -> int:
        """Pixels needed before its own."""
        return self.kept.start - self.needed.start

    @property
    def after(self) -> int:
        """Pixels needed after its own."""
        return self.needed.stop - self.kept.stop

    @property
    def changes_nothing(self) -> bool:
        """Whether the tile needs exactly what it has, and no other tile needs any of it."""
        return self.owned == self.needed and not self.sends

    def in_tile(self, pixels: range) -> tuple[int, int]:
        """Where `pixels` begin in this rank's tile, and how many they are: the arguments of `narrow`."""
        return (pixels.start - self.owned.start, len(pixels)) if pixels else (0, 0)

    def in_needed(self, pixels: range) -> tuple[int, int]:
        """The same, in what the tile needs: its halo and padding included."""
        return (pixels.start - self.needed.start, len(pixels)) if pixels else (0, 0)


def overlap(one: range, other: range) -> range:
    """The pixels that are in both."""
    start = max(one.start, other.start)
    return range(start, max(start, min(one.stop, other.stop)))


def halo_of(owned: Sequence[range], needed: Sequence[range], rank: int) -> Halo:
    """The halo of `rank`, when rank r has the pixels `owned[r]` and needs `needed[r]`."""
    if len(owned) != len(needed):
        raise ValueError(f"{len(owned)} tiles and {len(needed)} needs; give one need per tile")
    others = [other for other in range(len(owned)) if other != rank]
    sends = [(other, overlap(owned[rank], needed[other])) for other in others]
    receives = [(other, overlap(owned[other], needed[rank])) for other in others]
    return Halo(
        owned[rank],
        needed[rank],
        tuple(piece for piece in sends if piece[1]),
        tuple(piece for piece in receives if piece[1]),
    )


def fused_needs(windows: Sequence[Window], outputs: range) -> list[range]:
    """What a tile needs before each layer, and its outputs last, when nothing is exchanged in between."""
    needs = [outputs]
    for window in reversed(windows):
        needs.append(window.needs(needs[-1]))
    return needs[::-1]
