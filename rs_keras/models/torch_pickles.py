"""Pickles that PyTorch wrote, read without unpickling.

Unpickling runs what a file says. Here Python's `pickletools` splits a pickle
into its instructions, and those that data is made of are followed by hand. The
few names that tensors are pickled under stand for symbols; every other name is
refused.
"""

import math
import pickletools
import reprlib
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO
from typing import Any

import numpy as np

# "bfloat16" has no NumPy type: its 16 bits are the upper ones of a float32.
BFLOAT16 = "bfloat16"
STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": BFLOAT16,
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}

_MARK = object()

# No array of NumPy has more axes; sizes are 64-bit integers.
_MOST_AXES = 64
_LARGE = 1 << 63

REFUSED = (
    "only tensors, numbers, text, lists and dicts are read, and nothing in a "
    "file is executed; save `model.state_dict()` alone with PyTorch"
)


class CheckpointError(ValueError):
    """A file that is damaged, or no checkpoint of tensors alone.

    Example:

    >>> from rs_keras.models.torch_pickles import CheckpointError
    >>> issubclass(CheckpointError, ValueError)
    True
    """


@dataclass(frozen=True)
class _Name:
    """A global name of a pickle: a symbol, never looked up."""

    text: str


@dataclass
class Storage:
    """Raw numbers that tensors are views of; legacy files tell them last.

    Attributes:
        dtype: One of the values of `STORAGES`.
        size: How many numbers.
        data: The numbers, once they are read.

    Example:

    >>> from rs_keras.models.torch_pickles import Storage
    >>> Storage("float32", 3).data is None
    True
    """

    dtype: str
    size: int
    data: np.ndarray | None = None


@dataclass(frozen=True)
class Tensor:
    """A view of a storage, which it must lie in when its numbers are taken.

    Attributes:
        storage: What it is a view of.
        offset: Of its first number.
        shape: Of the tensor.
        strides: Numbers from one place to the next, on each axis.

    Raises:
        CheckpointError: If they are no sizes, or not one for each axis.

    Example:

    >>> import numpy as np
    >>> from rs_keras.models.torch_pickles import Storage, Tensor
    >>> storage = Storage("float32", 6, np.arange(6, dtype=np.float32))
    >>> Tensor(storage, 1, (2, 2), (1, 2)).array().tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        numbers = (self.offset, *self.shape, *self.strides)
        whole = all(type(n) is int and 0 <= n < _LARGE for n in numbers)
        axes = len(self.shape)
        if not whole or axes != len(self.strides) or axes > _MOST_AXES:
            raise CheckpointError(
                "a tensor's offset, shape and strides must be whole numbers "
                f">= 0. Received: {shown(self.offset)}, {shown(self.shape)}, "
                f"{shown(self.strides)}"
            )

    def array(self) -> np.ndarray:
        """Returns the numbers, read-only, in the memory of the storage.

        So all views of a storage together take no more than it does.

        Raises:
            CheckpointError: If the view reaches beyond its storage.
        """
        data = self.storage.data
        if data is None:
            raise CheckpointError("the numbers of a tensor are missing")
        count = math.prod(self.shape)
        steps = zip(self.shape, self.strides, strict=True)
        last = self.offset + sum((n - 1) * step for n, step in steps)
        # As many numbers as the storage has, at most: no step of 0 makes a
        # small file a large array.
        if count > len(data) or (count and last >= len(data)):
            raise CheckpointError(
                "a tensor must lie inside its storage. Received: "
                f"shape={list(self.shape)}, strides={list(self.strides)}, "
                f"offset={self.offset}, storage of {len(data)} numbers"
            )
        if not count:
            return np.zeros(self.shape, data.dtype)
        return np.lib.stride_tricks.as_strided(
            data[self.offset :],
            self.shape,
            [step * data.itemsize for step in self.strides],
            writeable=False,
        )


def shown(value: Any) -> str:
    """Returns a value of a pickle for an error message, cut short.

    In full, tuples of the same tuples may be longer than the memory.

    Example:

    >>> from rs_keras.models.torch_pickles import shown
    >>> shown((3, 4)), shown(list(range(100)))
    ('(3, 4)', '[0, 1, 2, 3, 4, 5, ...]')
    """
    return reprlib.repr(value)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> Tensor:
    if not isinstance(storage, Storage):
        raise CheckpointError("a tensor must be a view of a storage")
    return Tensor(storage, offset, tuple(shape), tuple(strides))


def _tensor_v2(
    storage: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    requires_grad: Any = False,
    hooks: Any = None,
    metadata: Any = None,
) -> Tensor:
    """Whether and how a tensor gets gradients does not matter here."""
    bits = metadata.values() if isinstance(metadata, dict) else [metadata]
    if any(bits):
        raise CheckpointError(
            "a tensor must be saved as its numbers, not as the conjugate or "
            "the negative of others (resolve_conj, resolve_neg). Received: "
            f"{shown(metadata)}"
        )
    return _tensor(storage, offset, shape, strides)


def _ordered_dict(pairs: Any = ()) -> dict:
    return {_key(key): value for key, value in pairs}


# What a pickle may call: those names that torch.save writes for tensors.
_CALLS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered_dict,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_parameter": lambda data, *_: data,
    "torch.Size": tuple,
}
_KNOWN = {*_CALLS, *(f"torch.{name}" for name in STORAGES)}

_CONSTANTS = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
    "EMPTY_TUPLE": (),
}
_LITERALS = frozenset(
    """
    BININT BININT1 BININT2 LONG1 LONG4 INT LONG BINFLOAT FLOAT BINUNICODE
    SHORT_BINUNICODE BINUNICODE8 UNICODE BINSTRING SHORT_BINSTRING STRING
    """.split()
)


def _key(value: Any) -> Any:
    """Returns a key of a dict; nested tuples take an age to hash."""
    if type(value) not in (str, int):
        raise CheckpointError(
            f"a key is a {type(value).__name__}, not a name; {REFUSED}"
        )
    return value


def read_pickle(
    file: IO[bytes], storage_of: Callable[[Any], Storage] | None = None
) -> Any:
    """Builds what a pickle describes, from its instructions.

    Args:
        file: Read up to the end of the pickle.
        storage_of: Gives the storage of a persistent id.

    Raises:
        CheckpointError: At the first instruction or name that plain data with
            tensors does not need.

    Example:

    >>> import io, os, pickle
    >>> from rs_keras.models.torch_pickles import read_pickle
    >>> read_pickle(io.BytesIO(pickle.dumps({"epoch": 90}, protocol=2)))
    {'epoch': 90}
    >>> try:
    ...     read_pickle(io.BytesIO(pickle.dumps(os.getcwd, protocol=2)))
    ... except ValueError as error:
    ...     print(error)  # doctest: +ELLIPSIS
    it asks for posix.getcwd; only tensors, ...
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def popped() -> list[Any]:
        """Takes what lies above the last mark."""
        place = len(stack) - 1
        while stack[place] is not _MARK:
            place -= 1
        values = stack[place + 1 :]
        del stack[place:]
        return values

    def top(kind: type) -> Any:
        """Returns the container that is filled; never a tensor or a name."""
        if type(stack[-1]) is not kind:
            raise CheckpointError(f"a {kind.__name__} is filled that is none")
        return stack[-1]

    argument: Any
    for code, argument, _ in pickletools.genops(file):
        name = code.name
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[int(argument)])
        elif name == "TUPLE":
            stack.append(tuple(popped()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            size = int(name[-1])
            stack[-size:] = [tuple(stack[-size:])]
        elif name == "APPEND":
            value = stack.pop()
            top(list).append(value)
        elif name == "APPENDS":
            values = popped()
            top(list).extend(values)
        elif name == "SETITEM":
            key, value = stack.pop(-2), stack.pop()
            top(dict)[_key(key)] = value
        elif name == "SETITEMS":
            values = popped()
            pairs = zip(map(_key, values[::2]), values[1::2], strict=True)
            top(dict).update(pairs)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            if name == "STACK_GLOBAL":
                argument = " ".join([stack.pop(-2), stack.pop()])
            text = argument.replace(" ", ".")
            if text not in _KNOWN:
                raise CheckpointError(f"it asks for {text}; {REFUSED}")
            stack.append(_Name(text))
        elif name == "BINPERSID" and storage_of is not None:
            stack.append(storage_of(stack.pop()))
        elif name == "REDUCE":
            called, arguments = stack.pop(-2), stack.pop()
            if not isinstance(called, _Name) or called.text not in _CALLS:
                kind = type(called).__name__
                raise CheckpointError(f"it calls a {kind}; {REFUSED}")
            stack.append(_CALLS[called.text](*arguments))
        elif name == "BUILD":
            # Notes of a state dict (`_metadata`), which nothing here reads.
            stack.pop()
            top(dict)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise CheckpointError(f"the instruction {name}; {REFUSED}")
    (saved,) = stack
    return saved


def with_arrays(saved: Any) -> Any:
    """Returns what was saved with an array in place of each tensor.

    Each container once: a pickle may name one in many places, or in itself.

    Args:
        saved: As from `read_pickle`, with the storages filled.

    Raises:
        CheckpointError: If a tensor reaches beyond its storage, or a symbol
            stands alone.

    Example:

    >>> from rs_keras.models.torch_pickles import with_arrays
    >>> with_arrays({"lr": 0.1, "betas": (0.9, 0.99)})
    {'lr': 0.1, 'betas': (0.9, 0.99)}
    """
    done: dict[int, Any] = {}

    def convert(value: Any) -> Any:
        if isinstance(value, Storage | _Name):
            raise CheckpointError(f"a bare {shown(value)}; {REFUSED}")
        if not isinstance(value, Tensor | Mapping | list | tuple):
            return value
        if id(value) in done:
            return done[id(value)]
        made: Any
        if isinstance(value, Tensor):
            made = value.array()
        elif isinstance(value, Mapping):
            made = done[id(value)] = {}
            made.update({k: convert(v) for k, v in value.items()})
        elif isinstance(value, list):
            made = done[id(value)] = []
            made.extend(map(convert, value))
        else:
            made = tuple(map(convert, value))
        done[id(value)] = made
        return made

    return convert(saved)
