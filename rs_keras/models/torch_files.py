"""Reading tensors from PyTorch and safetensors files, without PyTorch.

A PyTorch file is a pickle beside raw numbers, and unpickling runs what a file
says. Here nothing is unpickled: Python's `pickletools` splits the pickle into
its instructions, and those that data is made of are followed by hand. The few
names that tensors are pickled under stand for symbols; every other name is
refused.
"""

import io
import json
import math
import pickletools
import zipfile
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from typing import Any

import numpy as np

# "bfloat16" has no NumPy type: its 16 bits are the upper ones of a float32.
_BFLOAT16 = "bfloat16"
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": _BFLOAT16,
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
_SAFETENSORS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": _BFLOAT16,
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}

# What stands at the head of a file from before PyTorch 1.6.
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
_MARK = object()

_REFUSED = (
    "only tensors, numbers, text, lists and dicts are read, and nothing in a "
    "file is executed; save `model.state_dict()` alone with PyTorch"
)


class CheckpointError(ValueError):
    """A file that is damaged, or no checkpoint of tensors alone.

    Example:

    >>> from rs_keras.models.torch_files import CheckpointError
    >>> issubclass(CheckpointError, ValueError)
    True
    """


@dataclass(frozen=True)
class _Name:
    """A global name of a pickle: a symbol, never looked up."""

    text: str


@dataclass
class _Storage:
    """Raw numbers that tensors are views of; legacy files tell them last."""

    dtype: str
    size: int
    data: np.ndarray | None = None


@dataclass(frozen=True)
class _Tensor:
    """A view of a storage, checked when its numbers are taken."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self) -> np.ndarray:
        """Returns a copy of the numbers.

        Raises:
            CheckpointError: If the view reaches beyond its storage.
        """
        numbers = (self.offset, *self.shape, *self.strides)
        whole = all(type(n) is int and n >= 0 for n in numbers)
        if not whole or len(self.shape) != len(self.strides):
            raise CheckpointError(
                "a tensor's offset, shape and strides must be whole numbers "
                f">= 0. Received: {self.offset}, {self.shape}, {self.strides}"
            )
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
        view = np.lib.stride_tricks.as_strided(
            data[self.offset :],
            self.shape,
            [step * data.itemsize for step in self.strides],
            writeable=False,
        )
        return view.copy()


def read_tensors(path: str | Path) -> Any:
    """Reads a checkpoint of PyTorch (.pt, .pth, .th, .tar) or safetensors.

    Zip files (PyTorch 1.6 and later) and those from before. A tensor of
    another device than the CPU is read like any other; bfloat16 becomes
    float32, which holds it exactly.

    Args:
        path: The file.

    Returns:
        What was saved, as dicts, lists, tuples, numbers and text, with NumPy
        arrays for tensors.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it is damaged, or holds anything else.

    Example:

    >>> import json, struct
    >>> from rs_keras.models.torch_files import read_tensors
    >>> header = json.dumps({"bias": {
    ...     "dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    >>> with open("tiny.safetensors", "wb") as file:
    ...     _ = file.write(struct.pack("<Q", len(header)) + header
    ...                    + struct.pack("<2f", 1.0, 2.0))
    >>> read_tensors("tiny.safetensors")["bias"].tolist()
    [1.0, 2.0]
    """
    place = Path(path).expanduser()
    if not place.is_file():
        raise FileNotFoundError(f"no such checkpoint: {path}")
    try:
        if zipfile.is_zipfile(place):
            return _arrays(_read_zip(place))
        with place.open("rb") as file:
            if place.suffix == ".safetensors":
                return _read_safetensors(file, place.stat().st_size)
            return _arrays(_read_legacy(file, place.stat().st_size))
    except CheckpointError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    # What the standard library finds in damaged files.
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        EOFError,
        OverflowError,
        RecursionError,
        NotImplementedError,
        zipfile.BadZipFile,
    ) as error:
        raise CheckpointError(
            f"cannot read {path}: it is no checkpoint of PyTorch or "
            f"safetensors, or damaged ({type(error).__name__}: {error})"
        ) from error


# -- formats -----------------------------------------------------------------


def _read_zip(path: Path) -> Any:
    """A folder with `data.pkl`, and `data/KEY` for each storage."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        pickles = [n for n in names if n.split("/")[-1] == "data.pkl"]
        if len(pickles) != 1:
            raise CheckpointError(
                "a PyTorch zip file has one data.pkl. Received: "
                f"{len(pickles)} of them among {len(names)} files"
            )
        root = pickles[0].removesuffix("data.pkl")
        if f"{root}constants.pkl" in names:
            raise CheckpointError(f"a TorchScript program; {_REFUSED}")
        order = "<"
        if f"{root}byteorder" in names:
            little = archive.read(f"{root}byteorder").strip() == b"little"
            order = "<" if little else ">"

        def load(key: str, storage: _Storage) -> None:
            entry = archive.getinfo(f"{root}data/{key}")
            wanted = storage.size * _item_size(storage.dtype)
            if entry.file_size < wanted:
                raise CheckpointError(f"storage {key!r} is cut short")
            with archive.open(entry) as file:
                storage.data = _numbers(file, storage, order)

        storages = _Storages(load)
        return _follow(io.BytesIO(archive.read(pickles[0])), storages.get)


def _read_legacy(file: IO[bytes], size: int) -> Any:
    """Four pickles, the third with what was saved; then the storages."""
    storages = _Storages()
    if _follow(file) != _LEGACY_MAGIC or _follow(file) != _LEGACY_PROTOCOL:
        raise CheckpointError("the head of a PyTorch file is not there")
    system = _follow(file)
    order = "<" if system["little_endian"] else ">"
    saved = _follow(file, storages.get)
    for key in _follow(file):
        storage = storages.known[key]
        count = int.from_bytes(
            file.read(8), "little" if order == "<" else "big"
        )
        left = size - file.tell()
        if count != storage.size or left < count * _item_size(storage.dtype):
            raise CheckpointError(f"storage {key!r} is cut short")
        storage.data = _numbers(file, storage, order)
    return saved


def _read_safetensors(file: IO[bytes], size: int) -> dict[str, np.ndarray]:
    """The length of a JSON header, the header, and the numbers."""
    length = int.from_bytes(file.read(8), "little")
    if length > size - 8:
        raise CheckpointError("the header of a safetensors file is cut short")
    header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        dtype = _SAFETENSORS.get(entry["dtype"])
        if dtype is None:
            raise CheckpointError(f"{name}: unknown type {entry['dtype']!r}")
        first, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        storage = _Storage(dtype, (end - first) // _item_size(dtype))
        if not 0 <= first <= end <= size - 8 - length:
            raise CheckpointError(f"{name}: its numbers are cut short")
        file.seek(8 + length + first)
        storage.data = _numbers(file, storage, "<")
        if math.prod(shape) != storage.size:
            raise CheckpointError(f"{name}: {shape} is not its size")
        steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        tensors[name] = _Tensor(storage, 0, shape, tuple(steps)).array()
    return tensors


def _item_size(dtype: str) -> int:
    return 2 if dtype == _BFLOAT16 else np.dtype(dtype).itemsize


def _numbers(file: IO[bytes], storage: _Storage, order: str) -> np.ndarray:
    """Reads a storage; raises ValueError if the file ends before it does."""
    kind = "uint16" if storage.dtype == _BFLOAT16 else storage.dtype
    dtype = np.dtype(kind).newbyteorder(order)
    raw = file.read(storage.size * dtype.itemsize)
    numbers = np.frombuffer(raw, dtype, storage.size)
    if storage.dtype == _BFLOAT16:
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(kind)


class _Storages:
    """The storages that a pickle names, each made once.

    Args:
        load: Called with the key of each and itself; None where the numbers
            come later.
    """

    def __init__(
        self, load: Callable[[str, _Storage], None] | None = None
    ) -> None:
        self.known: dict[str, _Storage] = {}
        self._load = load

    def get(self, identity: Any) -> _Storage:
        """Returns the storage of ("storage", type, key, device, size)."""
        kind, name, key, _, size, *rest = identity
        dtype = _STORAGES.get(name.text.removeprefix("torch."))
        if kind != "storage" or dtype is None or rest not in ([], [None]):
            raise CheckpointError(f"unknown storage {identity!r}; {_REFUSED}")
        if type(key) is not str or type(size) is not int or size < 0:
            raise CheckpointError(f"unknown storage {identity!r}")
        storage = self.known.get(key)
        if storage is None:
            storage = self.known[key] = _Storage(dtype, size)
            if self._load is not None:
                self._load(key, storage)
        if (storage.dtype, storage.size) != (dtype, size):
            raise CheckpointError(f"storage {key!r} is described in two ways")
        return storage


# -- pickles -----------------------------------------------------------------


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise CheckpointError("a tensor must be a view of a storage")
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _ordered_dict(pairs: Any = ()) -> dict:
    return dict(pairs)


# What a pickle may call: those names that torch.save writes for tensors. The
# further arguments (requires_grad, hooks) do not matter here.
_CALLS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered_dict,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": lambda *args: _tensor(*args[:4]),
    "torch._utils._rebuild_parameter": lambda data, *_: data,
    "torch.Size": tuple,
}
_KNOWN = {*_CALLS, *(f"torch.{name}" for name in _STORAGES)}

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


def _follow(
    file: IO[bytes], storage_of: Callable[[Any], _Storage] | None = None
) -> Any:
    """Builds what a pickle describes, from its instructions.

    Args:
        file: Read up to the end of the pickle.
        storage_of: Gives the storage of a persistent id.

    Raises:
        CheckpointError: At the first instruction or name that plain data with
            tensors does not need.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def popped() -> list[Any]:
        """Takes what lies above the last mark."""
        place = max(i for i, each in enumerate(stack) if each is _MARK)
        values = stack[place + 1 :]
        del stack[place:]
        return values

    def top(kind: type) -> Any:
        """Returns the container that is filled; never a tensor or a name."""
        if type(stack[-1]) is not kind:
            raise CheckpointError(f"a {kind.__name__} is filled that is none")
        return stack[-1]

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
            top(dict)[key] = value
        elif name == "SETITEMS":
            values = popped()
            pairs = zip(values[::2], values[1::2], strict=True)
            top(dict).update(pairs)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            if name == "STACK_GLOBAL":
                argument = f"{stack.pop(-2)} {stack.pop()}"
            text = argument.replace(" ", ".")
            if text not in _KNOWN:
                raise CheckpointError(f"it asks for {text}; {_REFUSED}")
            stack.append(_Name(text))
        elif name == "BINPERSID" and storage_of is not None:
            stack.append(storage_of(stack.pop()))
        elif name == "REDUCE":
            called, arguments = stack.pop(-2), stack.pop()
            if not isinstance(called, _Name) or called.text not in _CALLS:
                raise CheckpointError(f"it calls {called!r}; {_REFUSED}")
            stack.append(_CALLS[called.text](*arguments))
        elif name == "BUILD":
            # Notes of a state dict (`_metadata`), which nothing here reads.
            stack.pop()
            top(dict)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise CheckpointError(f"the instruction {name}; {_REFUSED}")
    (saved,) = stack
    return saved


def _arrays(saved: Any) -> Any:
    """Returns what was saved with an array in place of each tensor.

    Each container once: a pickle may name one in many places, or in itself.
    """
    done: dict[int, Any] = {}

    def convert(value: Any) -> Any:
        if isinstance(value, _Storage | _Name):
            raise CheckpointError(f"a bare {value!r}; {_REFUSED}")
        if not isinstance(value, _Tensor | Mapping | list | tuple):
            return value
        if id(value) in done:
            return done[id(value)]
        made: Any
        if isinstance(value, _Tensor):
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
