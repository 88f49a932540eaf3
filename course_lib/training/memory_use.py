"""How much memory a process uses, in two ways of counting that need not agree.

    live       the memory of all tensors that exist at a moment, whoever has them: `LiveBytes`
    resident   what the system has given the process, with Python and torch: `resident_bytes`

What it should be, by the formulas, is in `theory/memory.py`; activations alone are in `kept.py`.
"""

import ctypes
import gc
from collections.abc import Callable, Iterable
from typing import Any

import psutil
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
    an operation uses inside is not seen. `look`, if given, is called after every operation as well.
    """

    def __init__(self, there: Iterable[torch.Tensor] = (), look: Callable[[], object] | None = None) -> None:
        super().__init__()
        self.known = WeakIdKeyDictionary()
        self.look = look
        self.history: list[int] = []
        self.know(there)

    def know(self, tensors: Iterable[Any]) -> None:
        """Count these tensors, too."""
        for tensor in tensors:
            if torch.is_tensor(tensor):
                self.known[tensor.untyped_storage()] = None

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


def resident_bytes() -> int:
    """The bytes of memory that the system has given this process (RSS), after all that is free went back."""
    gc.collect()
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "malloc_trim"):  # glibc keeps what is freed, for later
        c_library.malloc_trim(0)
    return int(psutil.Process().memory_info().rss)
