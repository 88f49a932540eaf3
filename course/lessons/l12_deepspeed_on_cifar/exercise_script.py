"""Exercise 12.3: bugs of a script for CIFAR-10, checked with an engine that records its calls.

torch is imported where the check needs it.
"""

from types import SimpleNamespace
from typing import Any

from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect

NO_GPU = ("cuda", "accelerator", "device", "nvidia")  # builds of PyTorch differ in how they say it


class RecordingEngine:
    """Stands in for DeepSpeed's engine on one rank: it trains, and records its calls."""

    def __init__(self, net: Any, accumulation: int, fp16: bool, rank: int = 0) -> None:
        import torch

        self.module, self.accumulation, self.fp16, self.calls = net, accumulation, fp16, 0
        self.global_rank, self.saved = rank, 0
        self.device = torch.device("cpu")
        net.half() if fp16 else net.float()
        trained = [weight for weight in net.parameters() if weight.requires_grad]
        expect(bool(trained), "no parameter requires a gradient, so there is nothing to train.")
        self.optimizer, self.local_rank, self.pending = torch.optim.SGD(trained, lr=0.5), 0, False

    def __call__(self, inputs: Any) -> Any:
        return self.module(inputs)

    def fp16_enabled(self) -> bool:
        return self.fp16

    def backward(self, loss: Any) -> None:
        (loss / self.accumulation).backward()
        self.pending = True

    def step(self) -> None:
        expect(self.pending, "engine.step() was called without an engine.backward(loss) before it.")
        self.pending, self.calls = False, self.calls + 1
        if self.calls % self.accumulation == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def save_checkpoint(self, folder: str) -> None:
        expect(not self.pending, "the checkpoint misses an update: engine.step() comes first.")
        self.saved += 1


def _check_script(answer: SimpleNamespace, comm: Any, case: tuple[int, bool]) -> None:
    import torch

    accumulation, fp16 = case

    generator = torch.Generator().manual_seed(comm.rank)
    batches = [
        (torch.randn(4, 3, generator=generator), torch.randint(0, 2, (4,), generator=generator))
        for _ in range(4)
    ]
    engines: list[RecordingEngine] = []

    def initialize(net: Any) -> RecordingEngine:
        engines.append(RecordingEngine(net, accumulation, fp16, comm.rank))
        return engines[-1]

    net, expected = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    expected.load_state_dict(net.state_dict())
    try:
        answer.train_net(net, initialize, batches)
    except (AssertionError, RuntimeError, ValueError) as error:
        if not any(word in str(error).lower() for word in NO_GPU):
            raise
        raise Wrong(f"a tensor should move to a GPU, and there is none: {error!s:.60}") from None
    expect(bool(engines), "`initialize` was never called.")
    engine, right = engines[0], RecordingEngine(expected, accumulation, fp16)
    for inputs, labels in batches:
        inputs = inputs.half() if fp16 else inputs
        right.backward(torch.nn.functional.cross_entropy(right(inputs), labels))
        right.step()
    expect(engine.calls > 0, "no weight has changed: engine.step() was never called.")
    expect(not engine.pending, "the last engine.backward(loss) is not followed by an engine.step().")
    expect(
        engine.calls == len(batches),
        f"engine.step() was called {engine.calls} times for {len(batches)} micro-batches.",
    )
    same = torch.allclose(net.weight, expected.weight, atol=1e-6)
    expect(same, "the weights differ from those of a correct training; is the loss the mean over the batch?")
    expect(
        engine.saved == 1,
        f"rank {comm.rank} called engine.save_checkpoint {engine.saved} times. Every rank should call it "
        "once: those that call it wait for all others.",
    )


_SCRIPT = '''\
def train_net(net, initialize, batches):
    """Train `net` on all `batches`, and save; initialize(net) returns DeepSpeed's engine."""
    engine = initialize(net)
    for inputs, labels in batches:
        inputs, labels = inputs.to(engine.device), labels.to(engine.device)
        if engine.fp16_enabled():
            inputs = inputs.half()
        outputs = engine(inputs)
        loss = F.cross_entropy(outputs, labels)
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint("last")
'''

SCRIPT = Exercise(
    id="12.3",
    title="Spot the bugs: a training loop",
    task="The function should train `net` on CPUs or GPUs, with fp16 on or off, and save it. It has three "
    "bugs. Repair them.",
    objectives=(1,),
    targets=("mistakes-raise-errors", "only-rank-0-saves"),
    stub='''\
def train_net(net, initialize, batches):
    """Train `net` on all `batches`, and save; initialize(net) returns DeepSpeed's engine."""
    engine = initialize(net)
    for inputs, labels in batches:
        inputs, labels = inputs.to(engine.local_rank), labels.to(engine.local_rank)
        if engine.fp16_enabled():
            inputs = inputs.half()
            outputs = engine(inputs)
            loss = F.cross_entropy(outputs, labels)
            engine.backward(loss)
            engine.step()
    if engine.global_rank == 0:
        engine.save_checkpoint("last")
''',
    hints=(
        "On which device are the weights, which lines run when fp16 is off, and which ranks save?",
        ".to(0)                  copies to GPU number 0; engine.device is where the weights are\n"
        "lines under the if       run only when fp16 is on\n"
        "if rank 0: save         a call that waits for all ranks",
        "Use engine.device; under the if, keep only inputs = …; save on every rank.",
    ),
    solution=_SCRIPT,
    check=_check_script,
    cases=((1, False), (2, False), (1, True)),
    describe=lambda case: f"{case[0]} micro-batches per update, fp16 {'on' if case[1] else 'off'}",
    imports="import torch\nfrom torch.nn import functional as F",
    seconds=30.0,
    wrong=(
        WrongAnswer(
            changed(
                _SCRIPT, ("    engine = initialize", "    net.requires_grad_(False)\n    engine = initialize")
            ),
            "no parameter requires a gradient",
        ),
        WrongAnswer(
            changed(
                _SCRIPT, ("in batches:\n", "in batches:\n        inputs = inputs.to(engine.local_rank)\n")
            ),
            "a tensor should move to a GPU",
        ),
        WrongAnswer(
            changed(
                _SCRIPT,
                ("        outputs", "            outputs"),
                ("        loss", "            loss"),
                ("        engine.backward", "            engine.backward"),
                ("        engine.step", "            engine.step"),
            ),
            "engine.step() was never called",
        ),
        WrongAnswer(
            changed(_SCRIPT, ("        engine.step()", "    engine.step()")), "times for 4 micro-batches"
        ),
        WrongAnswer(
            changed(_SCRIPT, ("        engine.backward(loss)\n", "")), "without an engine.backward(loss)"
        ),
        WrongAnswer(
            changed(
                _SCRIPT,
                ("    engine.save", "    if engine.global_rank == 0:\n        engine.save"),
            ),
            "Every rank should call it once",
        ),
        WrongAnswer(
            changed(_SCRIPT, ("engine.backward(loss)", "engine.backward(2 * loss)")), "is the loss the mean"
        ),
    ),
    why="on CPUs without fp16, one bug raises an error, one skips training, one hangs. Which bug stays "
    "hidden on one rank?",
)
