"""A function of the notebook as text, so that ranks which know nothing of the notebook can run it."""

import base64
import marshal
from types import FunctionType
from typing import Any, cast


def packed(function: FunctionType) -> str:
    """The code of `function` as text, with the functions of the same module that it calls."""
    found, waiting = {}, [function]
    while waiting:
        each = waiting.pop()
        found[each.__name__] = (each.__code__, each.__defaults__)
        called = (each.__globals__.get(name) for name in each.__code__.co_names)
        waiting += [
            other
            for other in called
            if isinstance(other, FunctionType)
            and other.__module__ == function.__module__
            and other.__name__ not in found
        ]
    return base64.b64encode(marshal.dumps((function.__name__, found))).decode()


def loaded(text: str, names: dict[str, Any]) -> FunctionType:
    """The function that `packed` made this text of; `names` are the modules that it finds, such as `np`."""
    name, found = marshal.loads(base64.b64decode(text))
    here = dict(names)
    for each, (code, defaults) in found.items():
        here[each] = FunctionType(code, here, each, defaults)
    return cast(FunctionType, here[name])
