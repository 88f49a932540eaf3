"""What is trained, as the planner sees it: layers, what each keeps, computes and exchanges.

    tokens → embedding → block → block → norm → head → loss         the Transformer of training/transformer.py

A shape's `layers(part)` describes what *one rank* has of the model for one micro-batch, when tensor and
sequence parallelism cut the layers. Bytes:

    kept      from the forward pass to the layer's backward pass
    widest    more, at the moment of its backward pass when most is in memory: gradients of activations, and
              of the one weight whose gradient autograd has just computed

What a layer keeps follows from which tensors autograd saves: Korthikanti and others, "Reducing Activation
Recomputation in Large Transformer Models" (2022), section 4, here for 32-bit numbers and without dropout.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from course.lessons.l16_choose_your_strategy.planner.quantity import (
    Formulas,
    Quantity,
    counted,
    derived,
    given,
    total,
)

NOTHING = given(0, "nothing", "bytes")
INDEX_NBYTES = 8  # of a token's or a class's number: int64


@dataclass(frozen=True, slots=True)
class Part:
    """What of a micro-batch and of the layers one rank has: `samples`, shards of the weights."""

    samples: int
    tensor: int = 1
    sequence: bool = False
    element: int = 4  # bytes of a number


@dataclass(frozen=True, slots=True)
class Operation:
    """`times` operations of one kind, each of so much `work`.

    The work of a product (linear, attention) is in flop, and `numbers` is what it reads and writes: inputs,
    weights, outputs. The work of all else (gelu, norm, add, embedding, loss) is in numbers; block is what
    calling a block takes besides its operations.
    """

    kind: str
    work: Quantity
    times: int = 1
    numbers: Quantity | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """What the tensor ranks exchange: a collective of `nbytes`, in one direction."""

    collective: str  # all-reduce, all-gather, reduce-scatter
    nbytes: Quantity
    forward: int = 0  # how many in the forward pass
    backward: int = 0


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer on one rank; bytes are those of a micro-batch."""

    name: str
    sizes: tuple[int, ...]  # numbers of each parameter, in their order
    kept: Quantity
    widest: Quantity
    output: Quantity  # bytes that it passes on to the next layer
    operations: tuple[Operation, ...] = ()
    messages: tuple[Message, ...] = ()
    keeps_input: bool = False  # whether `kept` contains the tensor that comes in
    gathered: bool = False  # by itself in stage 3; the others are gathered together

    @property
    def parameters(self) -> int:
        """The numbers of all its parameters on this rank."""
        return sum(self.sizes)


def parameter_count(layers: Sequence[Layer]) -> Quantity:
    """The numbers of all parameters of `layers`."""
    return total("", [(layer.name, counted(layer.parameters, "its parameters")) for layer in layers])


# ---------------------------------------------------------------- a Transformer


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """A Transformer as `training/transformer.py` builds it, on sequences of `length` tokens."""

    blocks: int
    width: int
    length: int
    vocabulary: int
    heads: int

    def inputs_nbytes(self, part: Part) -> Quantity:
        """The token numbers of the sequences and of what follows each token."""
        return derived(
            "index * samples * (length + 1)",
            "bytes",
            "every token has a target: the token after it",
            index=given(INDEX_NBYTES, "of an int64", "bytes"),
            samples=part.samples,
            length=self.length,
        )

    def layers(self, part: Part) -> list[Layer]:
        """Embedding, blocks, norm, head and loss, as far as one rank has them."""
        of = Formulas(
            tokens=derived("samples * length", "", samples=part.samples, length=self.length),
            length=given(self.length, "tokens per sequence"),
            width=given(self.width, "numbers per token"),
            vocabulary=given(self.vocabulary, "different tokens"),
            heads=given(self.heads, "heads of attention"),
            tensor=given(part.tensor, "ranks that share each layer"),
            shared=given(part.tensor if part.sequence else 1, "ranks that share the tokens between layers"),
            element=given(part.element, "of a number", "bytes"),
        )
        block = self._block(of, part)
        return [
            self._embedding(of, part),
            *[block] * self.blocks,
            self._norm(of),
            self._head(of, part),
            self._loss(of, part),
        ]

    def _embedding(self, of: Formulas, part: Part) -> Layer:
        rows = self.vocabulary // part.tensor
        hidden = of("element * tokens * width / shared")
        gradients = of("element * (tokens * width / shared + vocabulary * width / tensor)")
        work = of("tokens * width", "numbers")
        cut = part.tensor > 1
        sums = "reduce-scatter" if part.sequence else "all-reduce"
        backward = int(part.sequence)  # of the gradient of what was scattered
        messages = (Message(sums, of("element * tokens * width"), 1, backward),) if cut else ()
        sizes = (rows * self.width, self.length * self.width)
        return Layer(
            "embedding", sizes, NOTHING, gradients, hidden, (Operation("embedding", work),), messages
        )

    def _block(self, of: Formulas, part: Part) -> Layer:
        d, ways = self.width, part.tensor
        qkv = (3 * d * d // ways, 3 * d // ways) if ways > 1 else (d * d, d) * 3
        sizes = (d, d, *qkv, d * d // ways, d, d, d, 4 * d * d // ways, 4 * d // ways, 4 * d * d // ways, d)
        norms = (
            "4 * width / shared + 4 / shared"  # what enters and leaves the norms, and two statistics of each
        )
        cut = "12 * width / tensor + heads / tensor"  # q, k, v, what attention mixed, and 4 + 4 around GeLU
        kept = of(f"element * tokens * ({norms} + {cut})")
        down = "element * (tokens * ({} * width + {} * width / tensor) + 4 * width ** 2 / tensor)"
        if part.sequence:
            gathered = "element * tokens * (3 * width - 2 * width / tensor)"
            widest = of(f"max({down.format(1, 5)}, {gathered})")
        elif ways > 1:
            summed = "element * tokens * (3 * width - 4 * width / tensor)"
            widest = of(f"max({down.format(1, 4)}, {summed})")
        else:
            widest = of(down.format(5, 0).replace(" + 0 * width / tensor", ""))
        return Layer(
            "block",
            sizes,
            kept,
            widest,
            of("element * tokens * width / shared"),
            self._block_operations(of, part),
            self._block_messages(of, part),
            keeps_input=True,
            gathered=True,
        )

    def _block_operations(self, of: Formulas, part: Part) -> tuple[Operation, ...]:
        square = of("2 * tokens * width ** 2 / tensor", "flop")
        through = of("2 * tokens * width + width ** 2", "numbers")
        merged = of("6 * tokens * width ** 2 / tensor", "flop")
        merged_through = of("tokens * (width + 3 * width / tensor) + 3 * width ** 2 / tensor", "numbers")
        wide = of("8 * tokens * width ** 2 / tensor", "flop")
        wide_through = of("tokens * (width + 4 * width / tensor) + 4 * width ** 2 / tensor", "numbers")
        projected = of("tokens * (width / tensor + width) + width ** 2 / tensor", "numbers")
        attention = of("4 * tokens * length * width / tensor", "flop")
        return (
            Operation("linear", merged, 1, merged_through)
            if part.tensor > 1
            else Operation("linear", square, 3, through),
            Operation("attention", attention, 1, of("4 * tokens * width / tensor", "numbers")),
            Operation("linear", square, 1, projected),
            Operation("linear", wide, 2, wide_through),
            Operation("gelu", of("4 * tokens * width / tensor", "numbers")),
            Operation("norm", of("tokens * width / shared", "numbers"), 2),
            Operation("add", of("tokens * width / shared", "numbers"), 2),
            Operation("block", counted(1, "a block's modules and views", "calls")),
        )

    def _block_messages(self, of: Formulas, part: Part) -> tuple[Message, ...]:
        if part.tensor == 1:
            return ()
        hidden = of("element * tokens * width")
        if not part.sequence:
            return (Message("all-reduce", hidden, 2, 2),)  # Megatron's g and f, of two pairs
        return (
            Message("all-gather", hidden, 2, 2 + 2),  # also of the inputs, for the weights' gradients
            Message("reduce-scatter", hidden, 2, 2),
        )

    def _norm(self, of: Formulas) -> Layer:
        kept = of("element * tokens * (width + 2) / shared")
        widest = of("element * tokens * 2 * width / shared")
        norm = Operation("norm", of("tokens * width / shared", "numbers"))
        output = of("element * tokens * width / shared")
        return Layer("norm", (self.width, self.width), kept, widest, output, (norm,), keeps_input=True)

    def _head(self, of: Formulas, part: Part) -> Layer:
        rows, ways = self.vocabulary // part.tensor, part.tensor
        weights = "vocabulary * width / tensor"
        if part.sequence:
            widest = of("element * tokens * (3 * width + width / tensor + vocabulary / tensor)")
        else:
            widest = of(f"element * (tokens * (width + vocabulary / tensor) + {weights})")
        flop = of("2 * tokens * width * vocabulary / tensor", "flop")
        through = of("tokens * (width + vocabulary / tensor) + width * vocabulary / tensor", "numbers")
        product = Operation("linear", flop, 1, through)
        hidden = of("element * tokens * width")
        messages: tuple[Message, ...] = ()
        if part.sequence:
            messages = (
                Message("all-gather", hidden, 1, 1),
                Message("reduce-scatter", hidden, 0, 1),
            )
        elif ways > 1:
            messages = (Message("all-reduce", hidden, 0, 1),)
        logits = of("element * tokens * vocabulary / tensor")
        kept = of("element * tokens * width / shared")
        return Layer(
            "head", (rows * self.width,), kept, widest, logits, (product,), messages, keeps_input=True
        )

    def _loss(self, of: Formulas, part: Part) -> Layer:
        logits = of("element * tokens * vocabulary / tensor")
        softmax = Operation("loss", of("tokens * vocabulary / tensor", "numbers"))
        twice = of("2 * element * tokens * vocabulary / tensor")
        if part.tensor == 1:
            return Layer("loss", (), logits, twice, NOTHING, (softmax,))
        # `vocabulary_cross_entropy` keeps the shifted logits and their exponentials.
        each = Message("all-reduce", of("element * tokens"), 3, 0)
        return Layer("loss", (), twice, twice, NOTHING, (softmax,), (each,))
