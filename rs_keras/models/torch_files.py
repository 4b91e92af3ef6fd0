"""Reading tensors from PyTorch and safetensors files, without PyTorch.

A PyTorch file is a pickle beside raw numbers; `torch_pickles` reads the pickle.
"""

import io
import json
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO
from typing import Any

import numpy as np

from rs_keras._paths import expanded
from rs_keras.models.torch_pickles import BFLOAT16
from rs_keras.models.torch_pickles import REFUSED
from rs_keras.models.torch_pickles import STORAGES
from rs_keras.models.torch_pickles import CheckpointError
from rs_keras.models.torch_pickles import Storage
from rs_keras.models.torch_pickles import Tensor
from rs_keras.models.torch_pickles import read_pickle
from rs_keras.models.torch_pickles import shown
from rs_keras.models.torch_pickles import with_arrays

_SAFETENSORS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": BFLOAT16,
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
    place = expanded(path)
    if not place.is_file():
        raise FileNotFoundError(f"no such checkpoint: {path}")
    try:
        if zipfile.is_zipfile(place):
            return with_arrays(_read_zip(place, place.stat().st_size))
        with place.open("rb") as file:
            if place.suffix == ".safetensors":
                return _read_safetensors(file, place.stat().st_size)
            return with_arrays(_read_legacy(file, place.stat().st_size))
    except CheckpointError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    # Damaged files raise whatever the standard library finds in them, also
    # RuntimeError, AssertionError and MemoryError.
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise CheckpointError(
            f"cannot read {path}: it is no checkpoint of PyTorch or "
            f"safetensors, or damaged ({type(error).__name__}: {error})"
        ) from error


# -- formats -----------------------------------------------------------------


def _read_zip(path: Path, size: int) -> Any:
    """A folder with `data.pkl`, and `data/KEY` for each storage."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        # Unpacked, a small file could fill the memory.
        if any(entry.compress_type for entry in archive.infolist()):
            raise CheckpointError("torch.save compresses no part of a file")
        if sum(entry.file_size for entry in archive.infolist()) > size:
            raise CheckpointError("the parts of the file overlap")
        pickles = [n for n in names if n.split("/")[-1] == "data.pkl"]
        if len(pickles) != 1:
            raise CheckpointError(
                "a PyTorch zip file has one data.pkl. Received: "
                f"{len(pickles)} of them among {len(names)} files"
            )
        root = pickles[0].removesuffix("data.pkl")
        if f"{root}constants.pkl" in names:
            raise CheckpointError(f"a TorchScript program; {REFUSED}")
        little = True
        if f"{root}byteorder" in names:
            little = archive.read(f"{root}byteorder").strip() == b"little"

        def load(key: str, storage: Storage) -> None:
            entry = archive.getinfo(f"{root}data/{key}")
            wanted = storage.size * _item_size(storage.dtype)
            if entry.file_size < wanted:
                raise CheckpointError(f"storage {key!r} is cut short")
            with archive.open(entry) as file:
                storage.data = _numbers(file, storage, little)

        storages = _Storages(load)
        return read_pickle(io.BytesIO(archive.read(pickles[0])), storages.get)


def _read_legacy(file: IO[bytes], size: int) -> Any:
    """Four pickles, the third with what was saved; then the storages."""
    storages = _Storages()
    if (
        read_pickle(file) != _LEGACY_MAGIC
        or read_pickle(file) != _LEGACY_PROTOCOL
    ):
        raise CheckpointError("the head of a PyTorch file is not there")
    system = read_pickle(file)
    little = bool(system["little_endian"])
    saved = read_pickle(file, storages.get)
    for key in read_pickle(file):
        if type(key) is not str or key not in storages.known:
            raise CheckpointError(f"no tensor has the storage {shown(key)}")
        storage = storages.known[key]
        count = int.from_bytes(file.read(8), "little" if little else "big")
        left = size - file.tell()
        if count != storage.size or left < count * _item_size(storage.dtype):
            raise CheckpointError(f"storage {key!r} is cut short")
        storage.data = _numbers(file, storage, little)
    return saved


def _read_safetensors(file: IO[bytes], size: int) -> dict[str, np.ndarray]:
    """The length of a JSON header, the header, and the numbers."""
    length = int.from_bytes(file.read(8), "little")
    if length > size - 8:
        raise CheckpointError("the header of a safetensors file is cut short")
    header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    tensors = {}
    left = size - 8 - length
    for name, entry in header.items():
        dtype = _SAFETENSORS.get(entry["dtype"])
        if dtype is None:
            raise CheckpointError(f"{name}: unknown type {entry['dtype']!r}")
        first, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        storage = Storage(dtype, (end - first) // _item_size(dtype))
        if not 0 <= first <= end <= size - 8 - length:
            raise CheckpointError(f"{name}: its numbers are cut short")
        # Each would be read anew.
        left -= end - first
        if left < 0:
            raise CheckpointError(f"{name}: its numbers are another tensor's")
        file.seek(8 + length + first)
        storage.data = _numbers(file, storage, True)
        if math.prod(shape) != storage.size:
            raise CheckpointError(f"{name}: {shape} is not its size")
        steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        tensors[name] = Tensor(storage, 0, shape, tuple(steps)).array()
    return tensors


def _item_size(dtype: str) -> int:
    return 2 if dtype == BFLOAT16 else np.dtype(dtype).itemsize


def _numbers(file: IO[bytes], storage: Storage, little: bool) -> np.ndarray:
    """Reads a storage; raises ValueError if the file ends before it does."""
    kind = "uint16" if storage.dtype == BFLOAT16 else storage.dtype
    dtype = np.dtype(kind).newbyteorder("<" if little else ">")
    raw = file.read(storage.size * dtype.itemsize)
    numbers = np.frombuffer(raw, dtype, storage.size)
    if storage.dtype == BFLOAT16:
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(kind)


class _Storages:
    """The storages that a pickle names, each made once.

    Args:
        load: Called with the key of each and itself; None where the numbers
            come later.
    """

    def __init__(
        self, load: Callable[[str, Storage], None] | None = None
    ) -> None:
        self.known: dict[str, Storage] = {}
        self._load = load

    def get(self, identity: Any) -> Storage:
        """Returns the storage of ("storage", type, key, device, size)."""
        kind, name, key, _, size, *rest = identity
        dtype = STORAGES.get(name.text.removeprefix("torch."))
        if kind != "storage" or dtype is None or rest not in ([], [None]):
            raise CheckpointError(
                f"unknown storage {shown(identity)}; {REFUSED}"
            )
        if type(key) is not str or type(size) is not int or size < 0:
            raise CheckpointError(f"unknown storage {shown(identity)}")
        storage = self.known.get(key)
        if storage is None:
            storage = self.known[key] = Storage(dtype, size)
            if self._load is not None:
                self._load(key, storage)
        if (storage.dtype, storage.size) != (dtype, size):
            raise CheckpointError(f"storage {key!r} is described in two ways")
        return storage
