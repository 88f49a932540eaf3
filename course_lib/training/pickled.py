"""Pickles read as the data they hold; nothing in them is ever called.

A pickle is a program for a small machine with a stack: *push 7, push a list, append, call that function*. A
file from elsewhere may therefore run whatever it likes when it is unpickled. This reader walks through the
program, knows the few instructions that CIFAR-10's files are made of, and refuses all others. Where
unpickling would look up a function and call it, a `Call` with its name and arguments is left in its place.

    c numpy dtype   U "u1" K 0 K 1 t   R      →      Call("numpy dtype", ("u1", 0, 1))

The opcodes are those of Python's `pickletools`, which reads the program and runs none of it.
"""

import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

INSTRUCTIONS = 200_000  # CIFAR-10's batches have some 40 000
MARK = object()  # what MARK pushes: where a tuple or some items begin
ARRAY, DTYPE = "numpy.core.multiarray _reconstruct", "numpy dtype"
BYTE_DTYPE = (DTYPE, ("u1", 0, 1))
PUSHED = {"SHORT_BINSTRING", "BINSTRING", "BINUNICODE", "BININT", "BININT1", "BININT2"}
FIXED = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class PickleError(ValueError):
    """Something in a pickle that the data the course knows has no need of: a clause that says what."""


@dataclass(slots=True, eq=False)
class Call:
    """What unpickling would have called and did not be: a name, its arguments, and the state given to it."""

    name: str
    arguments: tuple[Any, ...] | None = None  # None: the name itself
    state: Any = None


def read_pickle(content: bytes) -> Any:
    """The object that `content` describes, made of dicts, lists, tuples, numbers, texts (latin-1) and Calls.

    PickleError for a truncated pickle, one of more than one object, and one with any other instruction.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    end = 0
    try:
        for number, (opcode, argument, position) in enumerate(pickletools.genops(content)):
            if number == INSTRUCTIONS:
                raise PickleError(f"its pickle has more than {INSTRUCTIONS} instructions")
            execute(opcode.name, argument, stack, memo)
            end = (position or 0) + 1
    except PickleError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise PickleError(f"its pickle is truncated or damaged ({error})") from None
    if len(stack) != 1 or stack[0] is MARK or end != len(content):
        raise PickleError("its pickle holds more or less than one object")
    return stack[0]


def execute(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    """One instruction: what it does to `stack` and `memo`."""
    if name in ("PROTO", "STOP"):
        return
    if name in PUSHED:
        stack.append(argument)
    elif name in FIXED:
        stack.append(FIXED[name])
    elif name in ("BINPUT", "LONG_BINPUT"):
        memo[argument] = stack[-1]
    elif name in ("BINGET", "LONG_BINGET"):
        stack.append(memo[argument])
    elif name == "MARK":
        stack.append(MARK)
    elif name in ("EMPTY_DICT", "EMPTY_LIST"):
        stack.append({} if name == "EMPTY_DICT" else [])
    elif name in TUPLES:
        stack.append(pop(stack, TUPLES[name]))
    elif name == "TUPLE":
        stack.append(pop_to_mark(stack))
    elif name in ("APPEND", "APPENDS"):
        items = pop_to_mark(stack) if name == "APPENDS" else pop(stack, 1)
        own(stack[-1], list).extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        items = pop_to_mark(stack) if name == "SETITEMS" else pop(stack, 2)
        own(stack[-1], dict).update(pairs(items))
    else:
        execute_call(name, argument, stack)


def execute_call(name: str, argument: Any, stack: list[Any]) -> None:
    """One of the instructions that look up a name, call it, or give it a state; here they do not."""
    if name == "GLOBAL":
        if argument not in (ARRAY, DTYPE, "numpy ndarray"):
            raise PickleError(f"it asks for {argument!r:.60}, which CIFAR-10 has no use of")
        stack.append(Call(argument))
    elif name == "REDUCE":
        called, arguments = pop(stack, 2)
        stack.append(Call(own(called, Call).name, own(arguments, tuple)))
    elif name == "BUILD":
        (state,) = pop(stack, 1)
        own(stack[-1], Call).state = state
    else:
        raise PickleError(f"its pickle has the instruction {name}, which CIFAR-10 has no use of")


def pop(stack: list[Any], count: int) -> tuple[Any, ...]:
    """The last `count` entries of `stack`, taken off."""
    if len(stack) < count:
        raise IndexError("an instruction lacks its operands")
    items = tuple(stack[len(stack) - count :])
    if any(item is MARK for item in items):
        raise IndexError("a mark is left over")
    del stack[len(stack) - count :]
    return items


def pop_to_mark(stack: list[Any]) -> tuple[Any, ...]:
    """The entries after the last mark, taken off with it."""
    at = next((i for i in range(len(stack) - 1, -1, -1) if stack[i] is MARK), None)
    if at is None:
        raise IndexError("an instruction lacks its mark")
    items = tuple(stack[at + 1 :])
    del stack[at:]
    return items


def own(item: Any, kind: type) -> Any:
    """`item`, which is a `kind`."""
    if type(item) is not kind:
        raise TypeError(f"a {kind.__name__} is needed where there is a {type(item).__name__}")
    return item


def pairs(items: tuple[Any, ...]) -> dict[str, Any]:
    """Keys and values that follow each other; keys are texts: others may take for ever to be hashed."""
    keys, values = items[::2], items[1::2]
    return {own(key, str): value for key, value in zip(keys, values, strict=True)}


def to_bytes_array(item: Any, columns: int) -> NDArray[np.uint8]:
    """The array (rows, `columns`) of bytes that `item` stands for; PickleError when it is another thing."""
    state = item.state if isinstance(item, Call) and item.name == ARRAY else None
    if type(state) is not tuple or len(state) != 5:
        raise PickleError("its data are no array of numpy's")
    _, shape, dtype, fortran, text = state
    if type(dtype) is not Call or (dtype.name, dtype.arguments) != BYTE_DTYPE or fortran is not False:
        raise PickleError("its data are not bytes in rows")
    if not is_shape(shape) or shape[1] != columns:
        raise PickleError(f"its data have the shape {shape!r:.60} where (images, {columns}) is expected")
    if type(text) is not str or len(text) != shape[0] * columns:
        raise PickleError(f"its data do not have the {shape[0]} × {columns} bytes that their shape says")
    return np.frombuffer(text.encode("latin-1"), np.uint8).reshape(shape)


def is_shape(item: Any) -> bool:
    """Whether `item` is a pair of plain numbers from 0."""
    return type(item) is tuple and len(item) == 2 and all(type(n) is int and n >= 0 for n in item)
