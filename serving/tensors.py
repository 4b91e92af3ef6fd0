"""TensorProto to NumPy and back, with the rules of TensorFlow's C++.

A tensor travels as raw bytes (`tensor_content`) or as one repeated field for
its type. TF Serving reads both and answers with the latter. In a repeated
field the last value stands for all that are missing, and none at all for
zeros (core/framework/tensor.cc, `FromProtoField`).
"""

from typing import Any

import numpy as np
import tensorflow as tf

_MOST_DIMENSIONS = 254
# A few bytes can claim any size, as values may be left out. No tensor that was
# sent in full is larger: a protocol buffer ends at 2 GiB.
_MOST_BYTES = 2**31 - 1

# What an empty string takes in a tensor.
_STRING_BYTES = 24

_FIELDS = {
    tf.as_dtype(name): field
    for field, names in {
        "float_val": "float32",
        "double_val": "float64",
        "int_val": "int8 int16 int32 uint8 uint16 "
        "qint8 qint16 qint32 quint8 quint16",
        "int64_val": "int64",
        "uint32_val": "uint32",
        "uint64_val": "uint64",
        "bool_val": "bool",
        "string_val": "string",
        "half_val": "half bfloat16",
        "scomplex_val": "complex64",
        "dcomplex_val": "complex128",
    }.items()
    for name in names.split()
}
_FIELDS_BY_ENUM = {
    dtype.as_datatype_enum: (dtype, field) for dtype, field in _FIELDS.items()
}
# Types whose repeated field holds their bits rather than their value.
_BITS = (tf.half, tf.bfloat16)
_COMPLEX = {tf.complex64: np.float32, tf.complex128: np.float64}


def decode(proto: Any) -> np.ndarray:
    """Reads a tensor as `Tensor::FromProto` in C++ does.

    Args:
        proto: A `TensorProto`, with `tensor_content` or a repeated field.

    Returns:
        The array; strings as `bytes` in an array of objects. It shares memory
        with `proto` where it can, and must not be written to.

    Raises:
        ValueError: If C++ could not read it either, or if it claims more than
            2 GiB.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.serving.tensors import decode
    >>> decode(tf.make_tensor_proto([[1.0, 2.0]])).tolist()
    [[1.0, 2.0]]
    """
    if proto.dtype not in _FIELDS_BY_ENUM:
        raise ValueError(f"dtype {proto.dtype} cannot be sent")
    dtype, field = _FIELDS_BY_ENUM[proto.dtype]
    shape, size = _shape(proto, dtype)
    if proto.tensor_content and size:
        flat = _from_content(proto.tensor_content, dtype, size)
    else:
        flat = _from_field(getattr(proto, field), dtype, size)
    return flat.reshape(shape)


def claimed_bytes(proto: Any) -> int:
    """Returns the bytes that a tensor would take, without decoding it.

    0 for one that cannot be decoded.

    Args:
        proto: A `TensorProto`, whose last value stands for all that are
            missing.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.serving.tensors import claimed_bytes
    >>> proto = tf.make_tensor_proto(1.0, shape=[170_000, 28, 28, 1])
    >>> proto.ByteSize() < 54, claimed_bytes(proto)
    (True, 533120000)
    """
    if proto.dtype not in _FIELDS_BY_ENUM:
        return 0
    dtype, _ = _FIELDS_BY_ENUM[proto.dtype]
    size = 1
    for dim in proto.tensor_shape.dim:
        size *= max(0, dim.size)
    if dtype != tf.string:
        return size * int(dtype.size)
    values = proto.string_val
    missing = max(0, size - len(values)) * (len(values[-1]) if values else 0)
    sent = len(proto.tensor_content) + sum(map(len, values))
    return size * _STRING_BYTES + missing + sent


def enum_of(array: np.ndarray) -> int:
    """Returns the number of an array's type in a `TensorProto`.

    Example:

    >>> import numpy as np
    >>> from rs_keras.serving.tensors import enum_of
    >>> enum_of(np.zeros(1, np.float32))
    1
    """
    return int(tf.as_dtype(array.dtype).as_datatype_enum)


def encode(array: np.ndarray, proto: Any) -> None:
    """Writes a tensor as `Tensor::AsProtoField` in C++ does.

    Args:
        array: Of any type TensorFlow has; strings as an array of objects.
        proto: The empty `TensorProto` to fill: type, shape, repeated field.

    Raises:
        ValueError: For a type that has no repeated field.
    """
    dtype = tf.as_dtype(array.dtype)
    if dtype not in _FIELDS:
        raise ValueError(f"dtype {dtype.name} cannot be sent")
    proto.dtype = dtype.as_datatype_enum
    proto.tensor_shape.SetInParent()
    for length in array.shape:
        proto.tensor_shape.dim.add().size = length
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype in _BITS:
        flat = flat.view(np.uint16)
    elif dtype in _COMPLEX:
        flat = flat.view(_COMPLEX[dtype])
    getattr(proto, _FIELDS[dtype]).extend(flat.tolist())


def _shape(proto: Any, dtype: Any) -> tuple[tuple[int, ...], int]:
    # C++ does not look at `unknown_rank`.
    dims = tuple(dim.size for dim in proto.tensor_shape.dim)
    if len(dims) > _MOST_DIMENSIONS:
        raise ValueError(f"{len(dims)} dimensions")
    size = 1
    for dim in dims:
        if dim < 0:
            raise ValueError(f"a dimension is {dim}")
        size *= dim
    if size * dtype.size > _MOST_BYTES:
        raise ValueError(f"it would take {size * dtype.size} bytes")
    return dims, size


def _from_content(content: bytes, dtype: Any, size: int) -> np.ndarray:
    if dtype == tf.string:
        return _strings(content, size)
    if len(content) != size * dtype.size:
        raise ValueError(f"{len(content)} bytes for {size} {dtype.name}")
    if dtype == tf.bool and max(content) > 1:
        raise ValueError("bytes other than 0 and 1 for bool")
    return np.frombuffer(content, dtype.as_numpy_dtype)


def _strings(content: bytes, size: int) -> np.ndarray:
    """Splits `size` varint lengths, then the strings, one behind the other."""
    lengths = []
    position = 0
    for _ in range(size):
        length, shift = 0, 0
        while True:
            if position == len(content) or shift > 28:
                raise ValueError("string lengths do not parse")
            byte = content[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        lengths.append(length)
    if position + sum(lengths) != len(content):
        raise ValueError("string lengths do not add up")
    flat = np.empty(size, object)
    for index, length in enumerate(lengths):
        flat[index] = content[position : position + length]
        position += length
    return flat


def _from_field(values: Any, dtype: Any, size: int) -> np.ndarray:
    if dtype == tf.string:
        last = values[-1] if values else b""
        flat = np.empty(size, object)
        # NumPy itself would drop zeros at the end of a string.
        flat[:] = [*values[:size], *[last] * (size - len(values))]
        return flat
    read_as = np.dtype(dtype.as_numpy_dtype)
    if dtype in _BITS:
        given = np.array(values, np.uint32).astype(np.uint16).view(read_as)
    elif dtype in _COMPLEX:
        paired = values[: len(values) // 2 * 2]
        given = np.array(paired, _COMPLEX[dtype]).view(read_as)
    elif np.issubdtype(read_as, np.integer) and read_as.itemsize < 4:
        # C++ narrows the int32 of the field by its low bits.
        given = np.array(values, np.int32).astype(read_as)
    else:
        given = np.array(values, read_as)
    if len(given) >= size:
        return given[:size]
    flat = np.zeros(size, read_as)
    flat[: len(given)] = given
    if len(given):
        flat[len(given) :] = given[-1]
    return flat
