"""PyTorch's networks written out from their state dicts, and files by hand.

The forward passes follow the published PyTorch code (Cohen et al.'s
`archs/cifar_resnet.py`, akamaster's `resnet.py`, torchvision's `resnet.py`, the
LeNet of the MNIST example) on any set of operations: plain NumPy here, PyTorch
where it is installed. Nothing of the package is used.
"""

import struct
import zipfile

import numpy as np

CODES = {"float32": "FloatStorage", "int64": "LongStorage"}


# -- files -------------------------------------------------------------------


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value):
    return b"J" + struct.pack("<i", value)


def sizes(values):
    return b"(" + b"".join(map(number, values)) + b"t"


def tensor(key, dtype, count, shape, strides=None, offset=0, device="cuda:0"):
    """The instructions by which torch.save describes a tensor."""
    if strides is None:
        strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    storage = (
        b"("
        + text("storage")
        + f"ctorch\n{dtype}\n".encode()
        + text(key)
        + text(device)
        + number(count)
        + b"tQ"
    )
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + number(offset)
        + sizes(shape)
        + sizes(strides)
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )


def of_dict(items):
    """A dict of texts and of instructions that make values."""
    pairs = b"".join(text(key) + value for key, value in items.items())
    return b"ccollections\nOrderedDict\n)R(" + pairs + b"u"


def pickled(body):
    return b"\x80\x02" + body + b"."


def write_zip(path, body, storages=(), **files):
    """A zip file as of PyTorch 1.6 and later, uncompressed."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(body))
        for key, data in dict(storages).items():
            archive.writestr(f"archive/data/{key}", data)
        for name, data in files.items():
            archive.writestr(f"archive/{name}", data)


def write_state(path, state, prefix="", wrap=None):
    """A state dict as a zip file; `wrap` puts it into a larger dict."""
    items, storages = {}, {}
    for place, (name, array) in enumerate(state.items()):
        array = np.ascontiguousarray(array)
        code = CODES[str(array.dtype)]
        items[prefix + name] = tensor(str(place), code, array.size, array.shape)
        storages[str(place)] = array.tobytes()
    body = of_dict(items)
    # As of a state dict: BUILD with a note, `_metadata`.
    body += b"}" + text("_metadata") + b"}sb"
    write_zip(path, wrap(body) if wrap else body, storages)


# -- states ------------------------------------------------------------------


def shapes_of(arch, shortcut="downsample", last="fc"):
    """Names and shapes of the tensors, in the order of PyTorch's code."""
    if arch == "lenet":
        yield from (("conv1", (20, 1, 5, 5)), ("conv2", (50, 20, 5, 5)))
        yield from (("fc1", (500, 800)), ("fc2", (10, 500)))
        return
    bottleneck = arch == "resnet50"
    width, counts, stem = (16, [3, 3, 3], 3)
    if arch == "cifar_resnet110":
        counts = [18, 18, 18]
    if bottleneck:
        width, counts, stem = 64, [3, 4, 6, 3], 7
    yield "conv1", (width, 3, stem, stem)
    yield "bn1", (width,)
    inside = width
    for stage, count in enumerate(counts):
        planes = width * 2**stage
        outside = planes * (4 if bottleneck else 1)
        for block in range(count):
            name = f"layer{stage + 1}.{block}"
            kernels = [(planes, inside, 3, 3), (planes, planes, 3, 3)]
            if bottleneck:
                kernels = [
                    (planes, inside, 1, 1),
                    (planes, planes, 3, 3),
                    (outside, planes, 1, 1),
                ]
            for place, kernel in enumerate(kernels, 1):
                yield f"{name}.conv{place}", kernel
                yield f"{name}.bn{place}", kernel[:1]
            if shortcut and inside != outside:
                yield f"{name}.{shortcut}.0", (outside, inside, 1, 1)
                yield f"{name}.{shortcut}.1", (outside,)
            inside = outside
    yield last, (10, inside)


def random_state(arch, seed=1, tracked=True, **names):
    """Random tensors: each layer keeps the size of what goes through."""
    random = np.random.default_rng(seed)
    state = {}

    def put(name, shape, scale, centre=0.0):
        values = centre + scale * random.standard_normal(shape)
        state[name] = values.astype(np.float32)

    for name, shape in shapes_of(arch, **names):
        if len(shape) > 1:
            put(f"{name}.weight", shape, np.prod(shape[1:]) ** -0.5)
            if len(shape) == 2 or arch == "lenet":
                put(f"{name}.bias", shape[:1], 0.1)
            continue
        put(f"{name}.weight", shape, 0.1, 1.0)
        put(f"{name}.bias", shape, 0.1)
        put(f"{name}.running_mean", shape, 0.1)
        put(f"{name}.running_var", shape, 0.05, 1.0)
        if tracked:
            state[f"{name}.num_batches_tracked"] = np.array(7, np.int64)
    return state


# -- forward passes ----------------------------------------------------------


class InNumpy:
    """PyTorch's operations on [batch, channels, height, width]."""

    @staticmethod
    def conv(x, w, bias=None, stride=1, padding=0):
        x = np.pad(x, [(0, 0), (0, 0), (padding,) * 2, (padding,) * 2])
        size = w.shape[2:]
        windows = np.lib.stride_tricks.sliding_window_view(x, size, (2, 3))
        windows = windows[:, :, ::stride, ::stride]
        y = np.tensordot(windows, w, [[1, 4, 5], [1, 2, 3]])
        y = y.transpose(0, 3, 1, 2)
        return y if bias is None else y + bias[:, None, None]

    @staticmethod
    def norm(x, mean, var, weight, bias):
        mean, var, weight, bias = (
            each[:, None, None] for each in (mean, var, weight, bias)
        )
        return (x - mean) / np.sqrt(var + 1e-5) * weight + bias

    @staticmethod
    def pool(x, size, stride, padding=0):
        x = np.pad(
            x,
            [(0, 0), (0, 0), (padding,) * 2, (padding,) * 2],
            constant_values=-np.inf,
        )
        windows = np.lib.stride_tricks.sliding_window_view(
            x, (size, size), (2, 3)
        )
        return windows[:, :, ::stride, ::stride].max((4, 5))

    @staticmethod
    def relu(x):
        return np.maximum(x, 0)

    @staticmethod
    def channels(x, side):
        return np.pad(x, [(0, 0), (side, side), (0, 0), (0, 0)])


def in_torch():
    """The same operations of PyTorch."""
    import torch
    from torch.nn import functional

    class InTorch:
        conv = staticmethod(functional.conv2d)
        norm = staticmethod(functional.batch_norm)
        relu = staticmethod(torch.relu)

        @staticmethod
        def pool(x, size, stride, padding=0):
            return functional.max_pool2d(x, size, stride, padding)

        @staticmethod
        def channels(x, side):
            return functional.pad(x, (0, 0, 0, 0, side, side))

    return InTorch


def logits_of(arch, state, x, ops=InNumpy):
    """The forward pass of the published code; x is [batch, C, H, W]."""
    state = {
        k.replace("shortcut", "downsample").replace("linear", "fc"): v
        for k, v in state.items()
    }
    if arch == "lenet":
        for name in ("conv1", "conv2"):
            x = ops.conv(x, state[f"{name}.weight"], state[f"{name}.bias"])
            x = ops.pool(ops.relu(x), 2, 2)
        x = x.reshape(len(x), -1)
        x = ops.relu(x @ state["fc1.weight"].T + state["fc1.bias"])
        return x @ state["fc2.weight"].T + state["fc2.bias"]

    def norm(x, name):
        values = ("running_mean", "running_var", "weight", "bias")
        return ops.norm(x, *(state[f"{name}.{value}"] for value in values))

    imagenet = arch == "resnet50"
    x = ops.conv(
        x,
        state["conv1.weight"],
        stride=2 if imagenet else 1,
        padding=3 if imagenet else 1,
    )
    x = ops.relu(norm(x, "bn1"))
    if imagenet:
        x = ops.pool(x, 3, 2, 1)
    blocks = sorted(
        {tuple(map(int, k[5:].split(".")[:2])) for k in state if "layer" in k}
    )
    for stage, block in blocks:
        name = f"layer{stage}.{block}"
        stride = 2 if stage > 1 and block == 0 else 1
        # torchvision strides in the 3x3 convolution of a bottleneck.
        strides = [1, stride, 1] if imagenet else [stride, 1]
        y = x
        for place, step in enumerate(strides, 1):
            kernel = state[f"{name}.conv{place}.weight"]
            side = kernel.shape[2] // 2
            y = ops.conv(y, kernel, stride=step, padding=side)
            y = norm(y, f"{name}.bn{place}")
            y = ops.relu(y) if place < len(strides) else y
        short = f"{name}.downsample"
        if f"{short}.0.weight" in state:
            x = ops.conv(x, state[f"{short}.0.weight"], stride=stride)
            x = norm(x, f"{short}.1")
        elif x.shape[1] != y.shape[1]:
            side = (y.shape[1] - x.shape[1]) // 2
            x = ops.channels(x[:, :, ::2, ::2], side)
        x = ops.relu(x + y)
    x = x.mean((2, 3))
    return x @ state["fc.weight"].T + state["fc.bias"]
