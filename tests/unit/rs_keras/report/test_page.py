"""The report page: words, tables, escaping, pictures, errors, the command."""

import base64
import hashlib
import io
import json
import re

import numpy as np
import pytest
from kits.report import NASTY
from kits.report import SETTINGS
from kits.report import log_of
from kits.report import pictures_of
from PIL import Image

import rs_keras.cli
from rs_keras import CertificationLog
from rs_keras import datasets
from rs_keras.logs import LogWriter
from rs_keras.report import Thumbnails
from rs_keras.report import report_page
from rs_keras.report import write_report
from rs_keras.report.page import millionths
from rs_keras.report.thumbnails import chosen_examples
from rs_keras.report.thumbnails import split_name


def data_of(page):
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', page
    )
    return json.loads(found[1])


def test_data_are_the_logs():
    log = log_of()
    (found,) = data_of(report_page([log]))["logs"]
    assert found == {
        "name": "one",
        "idx": [0, 3, 5, 8],
        "label": [1, 2, 0, 1],
        "predict": [1, 1, 0, -1],
        "radius": [900_000, 400_000, 250_000, 0],
        "correct": [1, 0, 1, 0],
    }


@pytest.mark.parametrize(
    "radius, expected",
    [
        (0.576, 576_000),
        (1.234567, 1_234_567),
        (1 / 3, 333_333),
        (2 / 3, 666_666),
    ],
    ids=["three-digits", "six-digits", "third", "two-thirds"],
)
def test_radii_are_never_rounded_up(radius, expected):
    assert millionths(np.array([radius])).tolist() == [expected]


def test_all_decimals_of_a_log_come_back():
    whole = np.arange(0, 4_000_000, 37)
    radius = np.array([float(f"{n // 10**6}.{n % 10**6:06d}") for n in whole])
    np.testing.assert_array_equal(millionths(radius), whole)


def test_a_report_has_its_words_and_tables():
    page = report_page([log_of()], radii=[0.0, 0.5])
    # ACR (0.9 + 0.25) / 4; 2 of 4 right, 1 of 4 with radius >= 0.5.
    row = re.search(r'<th scope="row">one</th>(.*?)</tr>', page)[1]
    assert re.findall(r"<td>(.*?)</td>", row)[:6] == [
        "0.287",
        "50.0",
        "25.0",
        "25.0",
        "4",
        "1000",
    ]
    assert "2 (50.0%)" in page and page.count("1 (25.0%)") == 2
    for words in (
        "with probability at least 0.999",
        "standard deviation 0.5",
        "not joint over many images",
        "chosen without knowledge of the noise",
        "assumes real arithmetic",
    ):
        assert words in page, words


def test_log_without_settings_claims_nothing():
    log = log_of(sigma=None)
    page = report_page([log])
    assert "with probability at least" not in page
    assert "cannot say with which noise" in page


def test_two_guarantees_name_their_logs():
    page = report_page([log_of("a"), log_of("b", alpha=0.01)])
    assert "<h3>a</h3>" in page and "<h3>b</h3>" in page
    assert "at least 0.99 over" in page and "at least 0.999 over" in page
    assert "alpha (0.001 and 0.01)" in page


def test_logs_are_compared_with_the_first():
    better = [(0, 1, 1, 1.1), (3, 2, 1, 1.2), (5, 0, 0, 1.05), (8, 1, -1, 0)]
    page = report_page([log_of("a"), log_of("b", better)])
    # Gains .2, 0, .8, 0.
    assert "<h3>Against a</h3>" in page and "<td>+0.2500</td>" in page


def test_decisions_are_called_what_they_are():
    rows = [(0, 1, 1, 0.5), (3, 2, -1, 0)]
    logs = [log_of(name, rows, radii=[0.5, 1.0]) for name in "ab"]
    page = report_page(logs)
    assert "a, b: radii were decided, not measured" in page
    assert "Not compared example by example" in page


def test_a_sigma_for_each_image_is_said():
    page = report_page([log_of(scope="per_input_sigma")])
    assert "uses this one sigma on the whole ball" in page
    assert "No one classifier has this curve" in page
    with pytest.raises(ValueError, match="the same scope"):
        report_page([log_of("a"), log_of("b", scope="per_input_sigma")])


def test_texts_are_escaped():
    log = log_of(NASTY, bound="clopper_pearson", model=NASTY)
    page = report_page(
        [log],
        title=NASTY,
        thumbnails=pictures_of(log, [NASTY] * 3),
        note=NASTY,
    )
    assert NASTY not in page
    # The data, the code, and no other script.
    assert page.count("<script") == 2 and page.count("</script") == 2
    assert data_of(page)["classes"] == [NASTY] * 3


def test_policy_lets_nothing_out():
    page = report_page([log_of()])
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)[1]
    policy = policy.replace("&#x27;", "'")
    assert policy.startswith("default-src 'none'; img-src data:;")
    for tag in ("style", "script"):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        digest = hashlib.sha256(text.encode()).digest()
        expected = base64.b64encode(digest).decode()
        assert f"{tag}-src 'sha256-{expected}'" in policy
    assert not re.search(r'(src|href)="(?!#|data:,)', page)


def test_same_logs_same_page():
    logs = [log_of("a"), log_of("b")]
    assert report_page(logs) == report_page(logs)


@pytest.mark.parametrize(
    "logs, message",
    [
        ([], "at least one log"),
        ([log_of(), log_of()], "different names. Received: 'one' twice"),
        (
            [CertificationLog([], [], [], [], [], [], name="a")],
            "^a holds no example$",
        ),
        (
            [log_of("a"), log_of("b", sigma=1.0)],
            r"same sigma .* sigma=0.5 \(a\), 1.0 \(b\)",
        ),
        (
            [log_of("a"), log_of("b", dataset="mnist/test")],
            r"same data set .* mnist/test \(b\)",
        ),
        (
            [log_of("a"), log_of("b", [(0, 1, 1, 1), (9, 0, 0, 1)])],
            "only in a: 3, 5, 8; only in b: 9.*side_by_side",
        ),
    ],
    ids=["none", "names", "empty", "sigma", "data", "examples"],
)
def test_a_report_refuses_bad_logs(logs, message):
    with pytest.raises(ValueError, match=message):
        report_page(logs)


def test_side_by_side_says_why_nothing_is_compared():
    page = report_page([log_of("a"), log_of("b", sigma=1.0)], side_by_side=True)
    assert "Not compared example by example" in page
    assert "sigma=0.5 (a), 1.0 (b)" in page


def test_sheet_holds_every_picture():
    log = log_of()
    sheet = pictures_of(log).sheet()
    data = base64.b64decode(sheet["url"].removeprefix("data:image/png;base64,"))
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    height, width = sheet["tile"]
    assert (height, width) == (4, 6) and sheet["idx"] == [0, 3, 5, 8]
    for i in range(4):
        top = i // sheet["columns"] * height
        left = i % sheet["columns"] * width
        tile = pixels[top : top + height, left : left + width]
        np.testing.assert_array_equal(tile, i + 1)


def test_five_hundred_of_the_worst_pictures_are_below_three_megabytes():
    rng = np.random.default_rng(0)
    log = log_of(rows=[(i, 1, 1, 0.5) for i in range(500)])
    noise = rng.integers(0, 256, (500, 32, 32, 3), np.uint8)
    thumbnails = Thumbnails(noise, log.idx, log.label, None, (32, 32, 3))
    assert len(report_page([log], thumbnails=thumbnails)) < 3e6


def test_pictures_of_a_data_set():
    images, labels = datasets.arrays("fashion_mini")
    found = Thumbnails.of_dataset("fashion_mini/test", [7, 2, 5000])
    assert found.idx.tolist() == [2, 7]
    assert found.label.tolist() == labels[[2, 7]].tolist()
    np.testing.assert_allclose(
        found.pictures / 255, images[[2, 7]], atol=0.5 / 255
    )


def test_large_pictures_are_shrunk(tmp_path):
    images = np.full((1, 100, 50, 3), 200, np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=[0])
    found = Thumbnails.of_dataset(f"npz:{tmp_path}/a.npz/test", [0])
    assert found.pictures.shape == (1, 64, 32, 3)
    assert found.image_shape == (100, 50, 3)
    np.testing.assert_array_equal(found.pictures, 200)


def test_pictures_of_another_data_set_are_refused():
    log = log_of()
    thumbnails = pictures_of(log_of(rows=[(3, 0, 0, 0.5)]))
    with pytest.raises(ValueError, match="example 3 with label 0, which is 2"):
        report_page([log], thumbnails=thumbnails)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("mnist", ("mnist", "test")),
        ("mnist/train", ("mnist", "train")),
        ("cifar10_corrupted/fog_3", ("cifar10_corrupted/fog_3", "test")),
        ("npz:/a/b.npz/train", ("npz:/a/b.npz", "train")),
    ],
    ids=["name", "split", "variant", "path"],
)
def test_the_split_of_a_data_set_name(name, expected):
    assert split_name(name) == expected


def test_examples_that_are_shown_first():
    rows = [(i, 1, 1, 0.1 * i) for i in range(10)]
    rows += [(10, 1, 0, 0.5), (11, 1, -1, 0.0)]
    log = log_of(rows=rows)
    assert chosen_examples(log, 12).tolist() == list(range(12))
    # Both misses, then the largest and the smallest radius.
    assert sorted(chosen_examples(log, 4).tolist()) == [0, 9, 10, 11]


def test_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "deep" / "report.html"
    size = write_report([log_of()], path)
    assert path.stat().st_size == size
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


@pytest.fixture(scope="module")
def log_file(tmp_path_factory):
    _, labels = datasets.arrays("fashion_mini")
    path = tmp_path_factory.mktemp("logs") / "run.tsv"
    with LogWriter(path, SETTINGS) as writer:
        for i in range(3):
            writer.write(i, int(labels[i]), int(labels[i]), 0.5, 1.0)
    return path


def test_the_command_writes_a_report(log_file, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert rs_keras.cli.main(["report", str(log_file), "-o", str(out)]) == 0
    assert "3 pictures" in capsys.readouterr().out
    data = data_of(out.read_text())
    assert data["sheet"]["idx"] == [0, 1, 2] and data["dimension"] == 784
    assert data["classes"][9] == "Ankle boot"


@pytest.mark.parametrize(
    "flags, code, message",
    [
        (["--data", "mnistt"], 2, "Did you mean 'mnist'?"),
        (["--max-images", "-1"], 2, "--max-images"),
        (["--max-images", "0"], 0, "0 pictures"),
    ],
    ids=["data", "count", "no-pictures"],
)
def test_bad_flags_of_the_report_command(
    log_file, tmp_path, capsys, flags, code, message
):
    out = str(tmp_path / "report.html")
    arguments = ["report", str(log_file), "-o", out, *flags]
    assert rs_keras.cli.main(arguments) == code
    said = capsys.readouterr()
    assert message in (said.err if code else said.out)


def test_command_without_a_data_set_says_why(tmp_path, capsys):
    path = tmp_path / "run.tsv"
    with LogWriter(path, SETTINGS | {"dataset": "my own"}) as writer:
        writer.write(0, 1, 1, 0.5, 1.0)
    out = tmp_path / "report.html"
    assert rs_keras.cli.main(["report", str(path), "-o", str(out)]) == 0
    assert "No pictures: the settings name my own" in out.read_text()


def test_a_log_of_somebody_else_opens_no_files(tmp_path):
    """It may name any data on this machine; --data is the user's word."""
    images = np.full([3, 4, 4, 1], 200, np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=[1, 1, 1])
    path, out = tmp_path / "run.tsv", tmp_path / "report.html"
    name = f"npz:{tmp_path / 'own.npz'}"
    with LogWriter(path, SETTINGS | {"dataset": name}) as writer:
        writer.write(0, 1, 1, 0.5, 1.0)
    command = ["report", str(path), "-o", str(out)]
    assert rs_keras.cli.main(command) == 0
    assert "sheet" not in data_of(out.read_text())
    assert rs_keras.cli.main([*command, "--data", name]) == 0
    assert data_of(out.read_text())["sheet"]["idx"] == [0]
