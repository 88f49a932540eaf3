"""How much memory the tensors of a process use: all that exist at a moment, whoever holds them.

What it should be, by the formulas, is in `theory/memory.py`; activations alone are in `kept.py`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class LiveBytes(TorchDispatchMode):
    """The bytes of all tensors that exist, after every operation of torch while it is entered.

        with LiveBytes(model.parameters()) as memory:
            …
        memory.peak, memory.history

    Of tensors that were there before, it knows those it is given, and those that an operation returns. What
    an operation uses inside is not seen. `look`, if given, is called after every operation as well. Tensors
    of `in_files`, whose bytes are not in memory, are never counted.
    """

    def __init__(
        self,
        there: Iterable[torch.Tensor] = (),
        look: Callable[[], object] | None = None,
        in_files: Iterable[torch.Tensor] = (),
    ) -> None:
        super().__init__()
        self.known = WeakIdKeyDictionary()
        self.in_files = WeakIdKeyDictionary()
        for tensor in in_files:
            self.in_files[tensor.untyped_storage()] = None
        self.look = look
        self.history: list[int] = []
        self.know(there)

    def know(self, tensors: Iterable[Any]) -> None:
        """Count these tensors, too."""
        for tensor in tensors:
            if torch.is_tensor(tensor) and (storage := tensor.untyped_storage()) not in self.in_files:
                self.known[storage] = None

    @property
    def live(self) -> int:
        """The bytes now."""
        return sum(storage.nbytes() for storage in self.known)

    @property
    def peak(self) -> int:
        """The most bytes after any operation so far."""
        return max(self.history, default=self.live)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.know(tree_leaves(result))
        self.history.append(self.live)
        if self.look is not None:
            self.look()
        return result
