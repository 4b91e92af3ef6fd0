"""An ONNX file written by hand: its protocol buffer, field by field."""

import numpy as np


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def number(field, value):
    return varint(field << 3) + varint(value)


def part(field, data):
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


def tensor(name, array):
    dims = b"".join(number(1, size) for size in array.shape)
    raw = np.ascontiguousarray(array, "<f4").tobytes()
    return dims + number(2, 1) + part(8, name) + part(9, raw)


def node(operation, inputs, output, **whole_numbers):
    attributes = b"".join(
        part(5, part(1, name) + number(3, value) + number(20, 2))
        for name, value in whole_numbers.items()
    )
    names = b"".join(part(1, name) for name in inputs)
    return names + part(2, output) + part(4, operation) + attributes


def value(name, sizes):
    """A float tensor whose first size is free."""
    dims = part(1, part(2, "batch"))
    dims += b"".join(part(1, number(1, size)) for size in sizes)
    shape = number(1, 1) + part(2, dims)
    return part(1, name) + part(2, part(1, shape))


def conv_network(kernel, bias, dense, offset, sizes):
    """Convolution, ReLU, global mean, dense: channels first."""
    nodes = [
        node("Conv", ["x", "kernel", "bias"], "maps"),
        node("Relu", ["maps"], "rectified"),
        node("GlobalAveragePool", ["rectified"], "means"),
        node("Flatten", ["means"], "flat", axis=1),
        node("Gemm", ["flat", "dense", "offset"], "logits"),
    ]
    weights = {
        "kernel": kernel.transpose(3, 2, 0, 1),
        "bias": bias,
        "dense": dense,
        "offset": offset,
    }
    graph = b"".join(part(1, each) for each in nodes) + part(2, "network")
    graph += b"".join(part(5, tensor(*each)) for each in weights.items())
    graph += part(11, value("x", sizes))
    graph += part(12, value("logits", offset.shape))
    opset = part(8, part(1, "") + number(2, 13))
    return number(1, 8) + opset + part(7, graph)
