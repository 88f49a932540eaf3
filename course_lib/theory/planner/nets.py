"""Fully connected and convolutional nets, as the planner sees them: layers as in `models.py`."""

from dataclasses import dataclass
from itertools import pairwise

from course_lib.theory.partition import even_ranges
from course_lib.theory.planner.models import INDEX_NBYTES, NOTHING, Layer, Message, Operation, Part
from course_lib.theory.planner.quantity import Formulas, Quantity, counted, derived, given
from course_lib.theory.tiles import halo_nbytes

KERNEL = 3  # of the convolutions: 3 × 3 pixels


@dataclass(frozen=True, slots=True)
class MLPShape:
    """Linear layers with ReLU between them: `widths` numbers before, between and after them.

    `layer_tiles`: each layer but the last in so many tiles, which stage 3 gathers one by one (`TiledLinear`).
    """

    widths: tuple[int, ...]
    layer_tiles: int = 1

    def inputs_nbytes(self, part: Part) -> Quantity:
        """The numbers that go in, and a class for each sample."""
        return derived(
            "samples * (element * inputs + index)",
            "bytes",
            samples=part.samples,
            element=part.element,
            inputs=self.widths[0],
            index=given(INDEX_NBYTES, "of an int64", "bytes"),
        )

    def layers(self, part: Part) -> list[Layer]:
        """The linear layers with their ReLUs, and the loss."""
        if part.tensor > 1 or part.tiles != (1, 1):
            raise ValueError(f"{self} has no layers that {part} could cut; use 1 tensor rank and 1 × 1 tiles")
        last = len(self.widths) - 2
        made = [
            _linear(
                part,
                inputs,
                outputs,
                relu=index < last,
                tiles=self.layer_tiles if index < last else 1,
                first=index == 0,
            )
            for index, (inputs, outputs) in enumerate(pairwise(self.widths))
        ]
        return [*made, _class_loss(part, self.widths[-1])]


@dataclass(frozen=True, slots=True)
class ConvShape:
    """Convolutions of 3 × 3 pixels with ReLU, the mean of each map, and a linear layer, on square images."""

    side: int
    channels: tuple[int, ...]
    classes: int = 10

    def inputs_nbytes(self, part: Part) -> Quantity:
        """The pixels of this rank's tiles of the images, and their classes."""
        rows, columns = (len(even_ranges(self.side, ways)[0]) for ways in part.tiles)
        return derived(
            "samples * (element * channels * rows * columns + index)",
            "bytes",
            samples=part.samples,
            element=part.element,
            channels=self.channels[0],
            rows=rows,
            columns=columns,
            index=given(INDEX_NBYTES, "of an int64", "bytes"),
        )

    def layers(self, part: Part) -> list[Layer]:
        """The convolutions with their ReLUs, the mean with the linear layer, and the loss."""
        if part.tensor > 1:
            raise ValueError(f"{self} is cut into tiles, not into {part.tensor} tensor shards; use 1")
        rows, columns = (len(even_ranges(self.side, ways)[0]) for ways in part.tiles)
        convolutions = [
            self._convolution(part, (rows, columns), maps, index)
            for index, maps in enumerate(pairwise(self.channels))
        ]
        head = _linear(part, self.channels[-1], self.classes, relu=False)
        return [*convolutions, head, _class_loss(part, self.classes)]

    def _convolution(
        self, part: Part, pixels: tuple[int, int], maps_in_out: tuple[int, int], index: int
    ) -> Layer:
        (rows, columns), (inputs, outputs) = pixels, maps_in_out
        tiled = part.tiles != (1, 1)
        of = Formulas(
            samples=part.samples,
            rows=given(rows, "of pixels on a rank"),
            columns=given(columns, "of pixels on a rank"),
            inputs=given(inputs, "maps that go in"),
            outputs=given(outputs, "maps that come out"),
            kernel=given(KERNEL, "pixels on a side"),
            element=given(part.element, "of a number", "bytes"),
        )
        maps = "element * samples * outputs * rows * columns"
        wider = "samples * inputs * (rows + kernel - 1) * (columns + kernel - 1)"
        padded = f"element * {wider}"
        weights = "element * inputs * outputs * kernel ** 2"
        # The gradient of a tile's mean is one number per map, seen from every pixel, until ReLU spreads it.
        gradients = 1 if tiled and index == len(self.channels) - 2 else 2
        seen = padded if tiled else "element * samples * inputs * rows * columns"
        flop = of("2 * samples * outputs * rows * columns * inputs * kernel ** 2", "flop")
        through = of("samples * rows * columns * (inputs + outputs)", "numbers")
        return Layer(
            "convolution",
            (outputs * inputs * KERNEL**2, outputs),
            of(f"{maps} + {padded}" if tiled else maps),
            of(f"max({gradients} * {maps}, {seen} + {weights})"),
            of(maps),
            (
                Operation("convolution", flop, 1, through, index == 0),
                Operation("relu", of("samples * outputs * rows * columns", "numbers")),
                *([Operation("fresh", of(wider, "numbers"), 2)] if tiled else []),
            ),
            self._halo(part, inputs) if tiled else (),
            keeps_output=True,
            gathered=1,
        )

    def _halo(self, part: Part, inputs: int) -> tuple[Message, ...]:
        """The pixels that the tile with most neighbours sends, and their gradients, which come back."""
        most = max(
            halo_nbytes((self.side, self.side), part.tiles, KERNEL // 2, channels=inputs, batch=part.samples)
        )
        sent = counted(most, "pixels at the sides of a tile: N·C·[2o(h + w) + 4o²], Dryden 2019", "bytes")
        return (Message("halo", "tiles", sent, 1, 1),)


def _linear(
    part: Part, inputs: int, outputs: int, *, relu: bool, tiles: int = 1, first: bool = False
) -> Layer:
    """A linear layer of `tiles` tiles, and the ReLU after it."""
    of = Formulas(
        samples=part.samples,
        inputs=given(inputs, "numbers that go in"),
        outputs=given(outputs, "numbers that come out"),
        tiles=given(tiles, "tiles of the layer"),
        element=given(part.element, "of a number", "bytes"),
    )
    kept = of("element * samples * outputs") if relu else NOTHING  # what ReLU returns
    backward = "samples * inputs + inputs * outputs / tiles"
    if tiles > 1:  # the inputs' gradient of one tile is added to that of the tiles before
        backward += " + samples * (inputs + outputs / tiles)"
    most = f"max(2 * samples * outputs, {backward})" if relu else f"samples * outputs + {backward}"
    flop = of("2 * samples * inputs * outputs / tiles", "flop")
    through = of("samples * (inputs + outputs / tiles) + inputs * outputs / tiles", "numbers")
    product = Operation("linear", flop, tiles, through, first)
    relus = (Operation("relu", of("samples * outputs", "numbers")),) if relu else ()
    sizes = tuple(size for piece in even_ranges(outputs, tiles) for size in (len(piece) * inputs, len(piece)))
    output = of("element * samples * outputs")
    return Layer(
        "linear",
        sizes,
        kept,
        of(f"element * ({most})"),
        output,
        (product, *relus),
        keeps_output=relu,
        gathered=tiles,
    )


def _class_loss(part: Part, classes: int) -> Layer:
    """The cross entropy, which keeps the logarithms of the probabilities."""
    logits = derived(
        "element * samples * classes", "bytes", element=part.element, samples=part.samples, classes=classes
    )
    twice = derived("2 * logits", "bytes", logits=logits)
    work = derived("samples * classes", "numbers", samples=part.samples, classes=classes)
    return Layer("loss", (), logits, twice, NOTHING, (Operation("loss", work),))
