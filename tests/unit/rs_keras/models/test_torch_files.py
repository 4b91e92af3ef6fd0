"""Checkpoints are read number by number, and nothing in them is executed."""

import io
import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
from kits import torch_networks as kit

from rs_keras.models import torch_files
from rs_keras.models.torch_files import read_tensors

NUMBERS = np.arange(12, dtype=np.float32)
DATA = {"0": NUMBERS.tobytes()}


def written(folder, body, storages=DATA, **files):
    kit.write_zip(folder / "checkpoint.pt", body, storages, **files)
    return folder / "checkpoint.pt"


def test_a_view_is_the_numbers_that_it_strides_over(tmp_path):
    """Rows 1 and 2 of a 4x3 storage, transposed."""
    body = kit.of_dict(
        {
            "view": kit.tensor("0", "FloatStorage", 12, [3, 2], [1, 3], 3),
            "whole": kit.tensor("0", "FloatStorage", 12, [4, 3]),
            "none": kit.tensor("0", "FloatStorage", 12, [0, 3]),
            "number": kit.tensor("0", "FloatStorage", 12, [], [], 5),
            "epoch": kit.number(90),
        }
    )
    read = read_tensors(written(tmp_path, body))
    np.testing.assert_array_equal(read["view"], [[3, 6], [4, 7], [5, 8]])
    np.testing.assert_array_equal(read["whole"], NUMBERS.reshape(4, 3))
    assert (read["none"].shape, read["number"], read["epoch"]) == (
        (0, 3),
        5.0,
        90,
    )


TYPES = {
    "DoubleStorage": (struct.pack("<2d", 0.5, -3.0), [0.5, -3.0]),
    "HalfStorage": (struct.pack("<2e", 0.5, -3.0), [0.5, -3.0]),
    # 0x3FC0 is 1.5 and 0xC040 is -3: the upper half of the float32.
    "BFloat16Storage": (struct.pack("<2H", 0x3FC0, 0xC040), [1.5, -3.0]),
    "LongStorage": (struct.pack("<2q", 5, -(2**40)), [5, -(2**40)]),
    "BoolStorage": (b"\x01\x00", [True, False]),
}


@pytest.mark.parametrize("dtype", TYPES)
def test_types(tmp_path, dtype):
    data, wanted = TYPES[dtype]
    body = kit.of_dict({"x": kit.tensor("0", dtype, 2, [2])})
    read = read_tensors(written(tmp_path, body, {"0": data}))["x"]
    assert read.tolist() == wanted


def test_numbers_of_a_big_endian_machine(tmp_path):
    body = kit.of_dict({"x": kit.tensor("0", "FloatStorage", 2, [2])})
    data = {"0": struct.pack(">2f", 1.0, 2.0)}
    path = written(tmp_path, body, data, byteorder=b"big")
    assert read_tensors(path)["x"].tolist() == [1.0, 2.0]


def legacy(body, keys, storages):
    """The four pickles and the storages of a file before PyTorch 1.6."""
    system = {"protocol_version": 1001, "little_endian": True}
    head = [0x1950A86A20F9469CFC6C, 1001, system]
    parts = [pickle.dumps(each, 2) for each in head]
    parts += [kit.pickled(body), pickle.dumps(keys, 2)]
    parts += [
        struct.pack("<q", len(each)) + each.tobytes() for each in storages
    ]
    return b"".join(parts)


def test_a_file_from_before_1_6(tmp_path):
    body = kit.of_dict(
        {
            "a": kit.tensor("77", "FloatStorage", 12, [12]),
            "b": kit.tensor("5", "LongStorage", 1, []),
        }
    )
    path = tmp_path / "old.pth.tar"
    data = legacy(body, ["5", "77"], [np.array([9]), NUMBERS])
    path.write_bytes(data)
    read = read_tensors(path)
    assert (read["a"].tolist(), read["b"]) == (NUMBERS.tolist(), 9)
    for cut in (5, 60, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(ValueError, match="cannot read"):
            read_tensors(path)


def test_safetensors(tmp_path):
    path = tmp_path / "model.safetensors"
    entries = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]},
        "n": {"dtype": "I64", "shape": [], "data_offsets": [48, 56]},
    }
    data = NUMBERS.tobytes() + struct.pack("<q", 3)

    def write(entries):
        header = json.dumps(entries).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + data)

    write(entries)
    read = read_tensors(path)
    np.testing.assert_array_equal(read["w"], NUMBERS.reshape(3, 4))
    assert read["n"] == 3
    for wrong in (
        {"shape": [3, 5]},
        {"data_offsets": [48, 96]},
        {"data_offsets": [-8, 40]},
        {"dtype": "F99"},
        {"shape": [-3, -4]},
    ):
        write({"w": entries["w"] | wrong})
        with pytest.raises(ValueError, match="cannot read"):
            read_tensors(path)
    path.write_bytes(struct.pack("<Q", 10**12) + b"{}")
    with pytest.raises(ValueError, match="cut short"):
        read_tensors(path)


def test_views_of_one_storage_share_its_memory(tmp_path):
    """A small file with many views must not become many arrays."""
    view = kit.tensor("0", "FloatStorage", 12, [4, 3])
    body = kit.of_dict({f"w{place}": view for place in range(50)})
    path = written(tmp_path, body)
    for data in (path.read_bytes(), legacy(body, ["0"], [NUMBERS])):
        path.write_bytes(data)
        first, *others = read_tensors(path).values()
        assert len(others) == 49
        assert all(np.shares_memory(first, other) for other in others)
        assert not any(array.flags.writeable for array in (first, *others))


def test_tensors_of_safetensors_lie_apart(tmp_path):
    entry = {"dtype": "F32", "shape": [12], "data_offsets": [0, 48]}
    header = json.dumps({"a": entry, "b": entry}).encode()
    path = tmp_path / "model.safetensors"
    data = struct.pack("<Q", len(header)) + header + NUMBERS.tobytes()
    path.write_bytes(data)
    with pytest.raises(ValueError, match="model.*another tensor's"):
        read_tensors(path)


def test_parts_of_a_zip_file_lie_apart(tmp_path):
    """Storage 1, with its header, is the end of storage 0."""
    path, names = tmp_path / "c.pt", ("archive/data/0", "archive/data/1")
    numbers = np.zeros(1000, np.float32).tobytes()
    with zipfile.ZipFile(io.BytesIO(), "w") as archive:
        archive.writestr(names[1], numbers)
        inner = archive.getinfo(names[1])
    outer = inner.FileHeader(zip64=False) + numbers
    body = kit.of_dict(
        {
            "a": kit.tensor("0", "ByteStorage", len(outer), [len(outer)]),
            "b": kit.tensor("1", "ByteStorage", 4000, [4000]),
        }
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", kit.pickled(body))
        archive.writestr(names[0], outer)
        first = archive.getinfo(names[0])
        inner.header_offset = archive.start_dir - len(outer)
        assert inner.header_offset > first.header_offset
        archive.filelist.append(inner)
    with pytest.raises(ValueError, match="c.pt.*overlap"):
        read_tensors(path)


def test_conjugates_and_negatives_are_refused(tmp_path):
    """PyTorch would negate the numbers, which are of another tensor."""
    whole = kit.tensor("0", "FloatStorage", 12, [12]).removesuffix(b"tR")
    for bits, told in ((b"}", None), (b"\x89", None), (b"\x88", "neg")):
        extra = bits if told is None else b"}" + kit.text(told) + bits + b"s"
        if bits == b"\x89":
            extra = b"}" + kit.text("conj") + bits + b"s"
        path = written(tmp_path, kit.of_dict({"w": whole + extra + b"tR"}))
        if told is None:
            assert read_tensors(path)["w"].tolist() == NUMBERS.tolist()
            continue
        with pytest.raises(ValueError, match="checkpoint.pt.*resolve_neg"):
            read_tensors(path)


@pytest.mark.parametrize(
    "error",
    [RuntimeError, MemoryError, AssertionError, OSError, struct.error],
)
def test_whatever_fails_the_error_names_the_file(tmp_path, error, monkeypatch):
    path = written(tmp_path, b"}")

    def failing(*_):
        raise error("no")

    monkeypatch.setattr(torch_files, "read_pickle", failing)
    with pytest.raises(ValueError, match=f"checkpoint.pt.*{error.__name__}"):
        read_tensors(path)


def test_an_encrypted_file(tmp_path):
    path = written(tmp_path, b"}")
    data = bytearray(path.read_bytes())
    place = data.find(b"PK\x01\x02")
    while place >= 0:
        data[place + 8] |= 1
        place = data.find(b"PK\x01\x02", place + 1)
    path.write_bytes(data)
    with pytest.raises(ValueError, match="checkpoint.pt.*encrypted"):
        read_tensors(path)


class Runs:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def hostile(path):
    """Pickles that do something, or take what is not theirs."""
    touch = pickle.dumps(Runs(path), 2)[2:-1]
    mkdir = b"cposix\nmkdir\n"
    reach = kit.text(str(path))
    inner = kit.tensor("0", "FloatStorage", 12, [12])
    yield "reduce", touch
    yield "in a state dict", kit.of_dict({"w": touch})
    yield "protocol 4", pickle.dumps(Runs(path), 4)[2:-1]
    yield "inst", b"(" + reach + b"iposix\nmkdir\n"
    yield "obj", b"(" + mkdir + reach + b"o"
    yield "newobj", mkdir + b"(" + reach + b"t\x81"
    yield "extension", b"\x82\x01"
    yield "builtin", b"cbuiltins\neval\n(" + kit.text("1") + b"tR"
    yield "called twice", (b"ccollections\nOrderedDict\n)R(" + reach + b"tR")
    yield "a storage called", b"ctorch\nFloatStorage\n)R"
    yield "a name alone", mkdir
    yield "a known name alone", b"ctorch\nFloatStorage\n"
    yield "build on a name", b"ccollections\nOrderedDict\n}b"
    yield "build on a tensor", inner + b"}" + kit.text("x") + b"}sb"
    yield "storage id", b"(" + kit.text("module") + mkdir + b"tQ"
    yield "memo", b"j\xff\xff\xff\x7f"
    yield "empty", b""
    yield "two values", b"]]"
    yield "no mark", b"]t"


def doubled(levels=20):
    """A tuple of twice the same tuple, and so on: 2**20 in each place."""
    body = b")"
    for level in range(levels):
        body += b"q" + bytes([level]) + b"h" + bytes([level]) + b"\x86"
    return body


ID = b"(" + kit.text("storage") + b"ctorch\nFloatStorage\n"
DOUBLED = {
    "key": b"}" + doubled() + b"K\x01s",
    "keys": b"}(" + doubled() + b"K\x01u",
    "pair": b"ccollections\nOrderedDict\n(]" + doubled() + b"K\x01\x86atR",
    "name": kit.text("torch") + doubled() + b"\x93",
    "storage": ID + kit.text("0") + doubled() + kit.number(-1) + b"tQ",
    "shape": kit.tensor("0", "FloatStorage", 12, [1]).replace(
        kit.sizes([1]), doubled(), 1
    ),
}


@pytest.mark.parametrize("place", DOUBLED)
def test_nested_tuples_are_neither_hashed_nor_printed(tmp_path, place):
    path = written(tmp_path, DOUBLED[place])
    with pytest.raises(ValueError, match="cannot read") as caught:
        read_tensors(path)
    assert len(str(caught.value)) < 1000
    path.write_bytes(legacy(b"}", [()], []))
    with pytest.raises(ValueError, match="no tensor has the storage"):
        read_tensors(path)


def cases():
    return [
        pytest.param(place, id=name)
        for place, (name, _) in enumerate(hostile("x"))
    ]


@pytest.mark.parametrize("place", cases())
def test_hostile_pickles_are_refused_and_do_nothing(tmp_path, place):
    made = tmp_path / "made"
    _, body = list(hostile(made))[place]
    path = written(tmp_path, body)
    with pytest.raises(ValueError, match="cannot read"):
        read_tensors(path)
    path.write_bytes(legacy(body, [], []))
    with pytest.raises(ValueError, match="cannot read"):
        read_tensors(path)
    path.write_bytes(b"\x80\x02" + body + b".")
    with pytest.raises(ValueError, match="cannot read"):
        read_tensors(path)
    assert not made.exists()


def test_the_hostile_pickle_would_have_run(tmp_path):
    """Python's own unpickler runs it: what is refused is the real thing."""
    made = tmp_path / "made"
    pickle.load(io.BytesIO(pickle.dumps(Runs(made), 2)))
    assert made.exists()


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ([13], [1], 0),
        ([12], [1], 1),
        ([4, 3], [4, 1], 0),
        ([4], [-1], 3),
        ([4], [1], -1),
        ([-4], [1], 0),
        # A small file must not become a large array.
        ([1000, 1000], [0, 0], 0),
        ([4, 3], [1], 0),
    ],
)
def test_no_tensor_reaches_beyond_its_storage(tmp_path, shape, strides, offset):
    body = kit.of_dict(
        {"w": kit.tensor("0", "FloatStorage", 12, shape, strides, offset)}
    )
    with pytest.raises(ValueError, match="cannot read.*tensor"):
        read_tensors(written(tmp_path, body))


@pytest.mark.parametrize(
    ("body", "storages"),
    [
        (kit.tensor("0", "FloatStorage", 13, [12]), DATA),
        (kit.tensor("0", "DoubleStorage", 12, [12]), DATA),
        (kit.tensor("../0", "FloatStorage", 12, [12]), DATA),
        (kit.tensor("0", "QInt8Storage", 12, [12]), DATA),
        (
            kit.of_dict(
                {
                    "a": kit.tensor("0", "FloatStorage", 12, [12]),
                    "b": kit.tensor("0", "IntStorage", 12, [12]),
                }
            ),
            DATA,
        ),
    ],
    ids=["longer", "wider", "elsewhere", "quantised", "two types"],
)
def test_storages_that_do_not_fit(tmp_path, body, storages):
    with pytest.raises(ValueError, match="cannot read"):
        read_tensors(written(tmp_path, body, storages))


def test_other_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such checkpoint"):
        read_tensors(tmp_path / "nothing.pt")
    script = written(tmp_path, b"}", {}, **{"constants.pkl": b""})
    with pytest.raises(ValueError, match="a TorchScript program"):
        read_tensors(script)
    with zipfile.ZipFile(tmp_path / "weights.zip", "w") as archive:
        archive.writestr("readme", "no tensors")
    with pytest.raises(ValueError, match="one data.pkl. Received: 0"):
        read_tensors(tmp_path / "weights.zip")
    with zipfile.ZipFile(tmp_path / "c.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", kit.pickled(b"}"))
    with pytest.raises(ValueError, match="compresses no part"):
        read_tensors(tmp_path / "c.pt")
    for text in (b"", b"PNG", b"\x80\x02}."):
        (tmp_path / "other.pt").write_bytes(text)
        with pytest.raises(ValueError, match="cannot read"):
            read_tensors(tmp_path / "other.pt")


def test_containers_that_hold_themselves_are_read_once(tmp_path):
    """[ [ ... ] ] in 2**60 places is one list of two."""
    body = b"]q\x00"
    for level in range(60):
        body += b"](h" + bytes([level]) + b"h" + bytes([level])
        body += b"eq" + bytes([level + 1])
    # Only the last remains on the stack.
    last = b"(" + body + b"t"
    read = read_tensors(written(tmp_path, last))
    assert len(read) == 61
    assert read[-1][0] is read[-1][1]


def test_files_that_torch_wrote(tmp_path):
    torch = pytest.importorskip(
        "torch", reason="PyTorch is not installed, nor ever in the CI"
    )
    state = {
        "w": torch.arange(12.0).reshape(3, 4).T,
        "half": torch.ones(3, dtype=torch.bfloat16),
        "p": torch.nn.Parameter(torch.zeros(2)),
    }
    state["tied"] = state["w"]
    for zipped in (True, False):
        path = tmp_path / f"{zipped}.pt"
        torch.save(
            {"state_dict": state, "arch": "x", "lr": 0.1},
            path,
            _use_new_zipfile_serialization=zipped,
        )
        read = read_tensors(path)
        for name, value in state.items():
            np.testing.assert_array_equal(
                read["state_dict"][name], value.detach().float().numpy()
            )
        assert (read["arch"], read["lr"]) == ("x", 0.1)
