"""The tensor codec against TensorFlow's own C++ parser."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from tensorflow.core.framework.tensor_pb2 import TensorProto

from rs_keras.serving import tensors

DTYPES = {
    "float32": np.float32([[1.5, -2.0]]),
    "float64": np.float64([1e300]),
    "int8": np.int8([-128, 127]),
    "int16": np.int16([-32768, 32767]),
    "int32": np.int32([[-(2**31)], [2**31 - 1]]),
    "int64": np.int64([-(2**63), 2**63 - 1]),
    "uint8": np.uint8([0, 255]),
    "uint16": np.uint16([0, 65535]),
    "uint32": np.uint32([2**32 - 1]),
    "uint64": np.uint64([2**64 - 1]),
    "bool": np.array([True, False]),
    "half": np.float16([1.0, -0.5]),
    "bfloat16": np.array([1.0, -3.0], ml_dtypes.bfloat16),
    "complex64": np.complex64([1 + 2j, 3 - 4j]),
    "complex128": np.complex128([1 + 2j]),
    "string": np.array([b"", b"\x00\xff", "é".encode() * 100], object),
    "scalar": np.array(2.5, np.float32),
    "no elements": np.zeros([3, 0, 2], np.float32),
}
CASES = {"argvalues": DTYPES.values(), "ids": DTYPES.keys()}


def parsed_by_tensorflow(proto):
    dtype = tf.as_dtype(proto.dtype)
    read = tf.io.parse_tensor(proto.SerializeToString(), dtype).numpy()
    return np.array(read, object) if isinstance(read, bytes) else read


@pytest.mark.parametrize("array", **CASES)
def test_encode_is_read_back_by_tensorflow(array):
    proto = TensorProto()
    tensors.encode(array, proto)
    assert not proto.tensor_content
    read = parsed_by_tensorflow(proto)
    assert read.shape == array.shape
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("array", **CASES)
def test_decode_the_content_tensorflow_writes(array):
    proto = TensorProto.FromString(tf.io.serialize_tensor(array).numpy())
    np.testing.assert_array_equal(tensors.decode(proto), array)


def test_decode_strings_in_the_content():
    # Lengths 0, 2 and 200 as varints (200 = 0xC8 0x01), then the strings.
    content = b"\x00\x02\xc8\x01" + b"\x00\xff" + b"x" * 200
    proto = TensorProto(dtype=7, tensor_content=content)
    proto.tensor_shape.dim.add().size = 3
    expected = [b"", b"\x00\xff", b"x" * 200]
    assert tensors.decode(proto).tolist() == expected
    assert parsed_by_tensorflow(proto).tolist() == expected


@pytest.mark.parametrize("array", **CASES)
def test_decode_the_fields_python_writes(array):
    proto = TensorProto()
    tensors.encode(array, proto)
    decoded = tensors.decode(proto)
    assert decoded.shape == array.shape
    np.testing.assert_array_equal(decoded, array)


@st.composite
def protos(draw):
    """Protos as a stranger might send them, most of them wrong."""
    kinds = [1, 2, 3, 4, 6, 7, 8, 9, 10, 14, 17, 18, 19, 22, 23]
    proto = TensorProto(dtype=draw(st.sampled_from(kinds)))
    for size in draw(st.lists(st.integers(-1, 4), max_size=3)):
        proto.tensor_shape.dim.add().size = size
    proto.tensor_shape.unknown_rank = draw(st.sampled_from([False] * 9 + [1]))
    proto.tensor_content = draw(st.just(b"") | st.binary(max_size=40))
    small = st.lists(st.integers(0, 1000), max_size=6)
    signed = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6)
    floats = st.lists(st.floats(width=32, allow_nan=False), max_size=6)
    proto.float_val.extend(draw(floats))
    proto.double_val.extend(draw(floats))
    proto.int_val.extend(draw(signed))
    proto.int64_val.extend(draw(signed))
    proto.uint32_val.extend(draw(small))
    proto.uint64_val.extend(draw(small))
    proto.half_val.extend(draw(small))
    proto.bool_val.extend(draw(st.lists(st.booleans(), max_size=6)))
    proto.string_val.extend(draw(st.lists(st.binary(max_size=4), max_size=6)))
    proto.scomplex_val.extend(draw(floats))
    proto.dcomplex_val.extend(draw(floats))
    return proto


@settings(max_examples=400, deadline=None, derandomize=True)
@given(protos())
def test_decode_agrees_with_cpp_on_any_proto(proto):
    try:
        expected = parsed_by_tensorflow(proto)
    except tf.errors.InvalidArgumentError:
        with pytest.raises(ValueError):
            tensors.decode(proto)
    else:
        decoded = tensors.decode(proto)
        assert decoded.shape == expected.shape
        np.testing.assert_array_equal(decoded, expected)


@pytest.mark.parametrize("given", [[], [b"a"], [b"a", b"\0"], [b"a"] * 5])
def test_the_last_string_stands_for_all_that_are_missing(given):
    proto = TensorProto(dtype=7, string_val=given)
    proto.tensor_shape.dim.add().size = 4
    decoded = tensors.decode(proto).tolist()
    assert decoded == parsed_by_tensorflow(proto).tolist()
    assert decoded == (given + given[-1:] * 4 if given else [b""] * 4)[:4]


def test_decode_refuses_bytes_that_are_no_bool():
    proto = TensorProto(dtype=10, tensor_content=b"\x01\x02")
    proto.tensor_shape.dim.add().size = 2
    with pytest.raises(tf.errors.InvalidArgumentError):
        parsed_by_tensorflow(proto)
    with pytest.raises(ValueError, match="other than 0 and 1 for bool"):
        tensors.decode(proto)
    proto.tensor_content = b"\x01\x00"
    np.testing.assert_array_equal(tensors.decode(proto), [True, False])


@pytest.mark.parametrize("dims", [[2**62, 4], [2**30], [10**6, 10**6]], ids=str)
def test_decode_refuses_claims_above_2_gib(dims):
    proto = TensorProto(dtype=1)
    for dim in dims:
        proto.tensor_shape.dim.add().size = dim
    with pytest.raises(ValueError, match="it would take"):
        tensors.decode(proto)


def test_decode_refuses_types_that_cannot_be_sent():
    with pytest.raises(ValueError, match="dtype 20 cannot be sent"):
        tensors.decode(TensorProto(dtype=20))
    with pytest.raises(ValueError, match="dtype 0 cannot be sent"):
        tensors.decode(TensorProto())
