"""Runs SavedModels through TensorFlow's C API, without Python's TensorFlow.

This is what a server does: the C++ loader, then a session. `run` starts this
file in a process of its own, which never imports `tensorflow`:

    python session_capi.py LIBRARIES JOB ANSWERS

A job is a JSON file: version folders, and for each the requests as names of
tensors and arrays. `libtensorflow_cc` is opened before anything of TensorFlow
could be, with RTLD_LOCAL: its OpenSSL would shadow that of `hashlib`.
"""

import ctypes
import hashlib  # noqa: F401
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

# From tensorflow/core/framework/types.proto.
_FLOAT32, _FLOAT64, _STRING, _INT64, _BOOL = 1, 2, 7, 9, 10
_DTYPES = {
    _FLOAT32: "float32",
    _FLOAT64: "float64",
    _INT64: "int64",
    _BOOL: "bool",
}
_CODES = {name: code for code, name in _DTYPES.items()}
_TSTRING_BYTES = 24


class CodeError(Exception):
    """A TF_Status that is not OK."""


class _Output(ctypes.Structure):
    _fields_ = [("operation", ctypes.c_void_p), ("index", ctypes.c_int)]


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("deallocator", ctypes.c_void_p),
    ]


class Runtime:
    """The few calls of the C API that load and run a SavedModel."""

    def __init__(self, folder):
        for name in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2"):
            self._lib = ctypes.CDLL(f"{folder}/{name}", mode=ctypes.RTLD_LOCAL)
        self._status = self._call("TF_NewStatus")

    def load(self, version):
        options = self._call("TF_NewSessionOptions")
        graph = self._call("TF_NewGraph")
        tags = (ctypes.c_char_p * 1)(b"serve")
        session = self._checked(
            "TF_LoadSessionFromSavedModel",
            _pointer(options),
            None,
            version.encode(),
            tags,
            1,
            _pointer(graph),
            None,
        )
        return session, graph

    def run(self, loaded, feeds, fetches):
        session, graph = loaded
        keys = [self._endpoint(graph, name) for name in feeds]
        values = [self._tensor(array) for array in feeds.values()]
        wanted = [self._endpoint(graph, name) for name in fetches.values()]
        found = (ctypes.c_void_p * len(wanted))()
        self._checked(
            "TF_SessionRun",
            _pointer(session),
            None,
            (_Output * len(keys))(*keys),
            (ctypes.c_void_p * len(values))(*values),
            len(keys),
            (_Output * len(wanted))(*wanted),
            found,
            len(wanted),
            None,
            0,
            None,
        )
        return {
            name: self._array(tensor)
            for name, tensor in zip(fetches, found, strict=True)
        }

    def _call(self, name, *args, returns=ctypes.c_void_p):
        function = getattr(self._lib, name)
        function.restype = returns
        return function(*args)

    def _checked(self, name, *args):
        result = self._call(name, *args, _pointer(self._status))
        code = self._call(
            "TF_GetCode", _pointer(self._status), returns=ctypes.c_int
        )
        if code:
            message = self._call(
                "TF_Message", _pointer(self._status), returns=ctypes.c_char_p
            )
            raise CodeError(code, message.decode())
        return result

    def _endpoint(self, graph, name):
        operation, _, index = name.partition(":")
        found = self._call(
            "TF_GraphOperationByName", _pointer(graph), operation.encode()
        )
        if not found:
            raise KeyError(f"the graph has no operation {operation}")
        return _Output(found, int(index))

    def _tensor(self, array):
        array = np.ascontiguousarray(array)
        strings = array.dtype.kind == "S"
        size = _TSTRING_BYTES if strings else array.dtype.itemsize
        tensor = self._call(
            "TF_AllocateTensor",
            _STRING if strings else _CODES[str(array.dtype)],
            (ctypes.c_int64 * array.ndim)(*array.shape),
            array.ndim,
            ctypes.c_size_t(size * array.size),
        )
        data = self._call("TF_TensorData", _pointer(tensor))
        if not strings:
            ctypes.memmove(data, array.ctypes.data, array.nbytes)
            return tensor
        for index, text in enumerate(array.reshape(-1).tolist()):
            place = ctypes.c_void_p(data + index * _TSTRING_BYTES)
            self._call("TF_StringInit", place)
            self._call("TF_StringCopy", place, text, len(text))
        return tensor

    def _array(self, tensor):
        pointer = _pointer(tensor)
        rank = self._call("TF_NumDims", pointer, returns=ctypes.c_int)
        shape = [
            self._call("TF_Dim", pointer, axis, returns=ctypes.c_int64)
            for axis in range(rank)
        ]
        code = self._call("TF_TensorType", pointer, returns=ctypes.c_int)
        data = self._call("TF_TensorData", pointer)
        if code == _STRING:
            return self._strings(data, int(np.prod(shape))).reshape(shape)
        array = np.empty(shape, _DTYPES[code])
        ctypes.memmove(array.ctypes.data, data, array.nbytes)
        return array

    def _strings(self, data, count):
        texts = []
        for index in range(count):
            place = ctypes.c_void_p(data + index * _TSTRING_BYTES)
            size = self._call(
                "TF_StringGetSize", place, returns=ctypes.c_size_t
            )
            start = self._call("TF_StringGetDataPointer", place)
            texts.append(ctypes.string_at(start, size))
        return np.array(texts, "S")


def _pointer(address):
    return ctypes.c_void_p(address)


def main(libraries, job, answers):
    runtime = Runtime(libraries)
    job = json.loads(Path(job).read_text())
    arrays = np.load(job["arrays"])
    found, errors = {}, {}
    loaded, load_seconds = {}, {}
    for version in job["versions"]:
        begun = time.perf_counter()
        loaded[version] = runtime.load(version)
        load_seconds[version] = time.perf_counter() - begun
    seconds = {}
    for index, request in enumerate(job["requests"]):
        feeds = {name: arrays[key] for name, key in request["feeds"].items()}
        begun = time.perf_counter()
        try:
            outputs = runtime.run(
                loaded[request["version"]], feeds, request["fetches"]
            )
        except CodeError as error:
            errors[str(index)] = list(error.args)
            continue
        seconds[str(index)] = time.perf_counter() - begun
        found.update({f"{index}/{k}": v for k, v in outputs.items()})
    if "tensorflow" in sys.modules:
        raise RuntimeError("this process must not import TensorFlow")
    np.savez(f"{answers}.npz", **found)
    Path(f"{answers}.json").write_text(
        json.dumps({"errors": errors, "load": load_seconds, "seconds": seconds})
    )


# -- the other side: the tests' own process ----------------------------------


def signature_defs(version):
    """The signatures as they are stored, by name."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    content = (Path(version) / "saved_model.pb").read_bytes()
    return SavedModel.FromString(content).meta_graphs[0].signature_def


def run(folder, requests):
    """Runs (version, signature name, inputs) in a new process, in order.

    Args:
        folder: An empty one, for the job.
        requests: A list of tuples; inputs are arrays by name.

    Returns:
        For each request its outputs by name, or its `CodeError`; and the
        seconds that loads and runs took, by version and by index.
    """
    import tensorflow

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays, described = {}, []
    for index, (version, name, inputs) in enumerate(requests):
        stored = signature_defs(version)[name]
        feeds = {}
        for alias, array in inputs.items():
            arrays[f"{index}/{alias}"] = np.asarray(array)
            feeds[stored.inputs[alias].name] = f"{index}/{alias}"
        fetches = {alias: info.name for alias, info in stored.outputs.items()}
        described.append(
            {"version": str(version), "feeds": feeds, "fetches": fetches}
        )
    np.savez(folder / "arrays.npz", **arrays)
    versions = list(dict.fromkeys(one["version"] for one in described))
    (folder / "job.json").write_text(
        json.dumps(
            {
                "arrays": str(folder / "arrays.npz"),
                "versions": versions,
                "requests": described,
            }
        )
    )
    process = subprocess.run(
        [
            sys.executable,
            __file__,
            str(Path(tensorflow.__file__).parent),
            str(folder / "job.json"),
            str(folder / "answers"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if process.returncode:
        raise RuntimeError(process.stderr[-3000:])
    times = json.loads((folder / "answers.json").read_text())
    found = np.load(folder / "answers.npz")
    answers = []
    for index, one in enumerate(described):
        if str(index) in times["errors"]:
            answers.append(CodeError(*times["errors"][str(index)]))
        else:
            answers.append({k: found[f"{index}/{k}"] for k in one["fetches"]})
    return answers, times


if __name__ == "__main__":
    main(*sys.argv[1:])
