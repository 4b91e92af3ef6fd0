"""From training to a certificate over gRPC, with the command line.

    make quickstart

Trains SmoothMix on the bundled images, certifies, prints the table, writes a
plot and a report page, exports the certifier, serves it and requests the
certificate of one image. All files are written to the folder `quickstart`.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image

from rs_keras._compat import import_tensorflow

FOLDER = Path("quickstart")
IMAGE = 0

STAGES = 7
BEGUN = time.monotonic()


def stage(number, title):
    seconds = time.monotonic() - BEGUN
    print(f"\n== {number}/{STAGES} {title}  ({seconds:.0f} s)", flush=True)


def command(*words):
    """Returns the arguments of a subprocess that runs rs-keras."""
    return [sys.executable, "-m", "rs_keras.cli", *map(str, words)]


def call(*words):
    print("$ rs-keras", *words, flush=True)
    subprocess.run(command(*words), check=True)


def save_image(path):
    """Writes a bundled test image as PNG; returns label and class names."""
    import_tensorflow()
    from rs_keras import datasets

    images, labels = datasets.arrays("fashion_mini")
    pixels = (images[IMAGE, :, :, 0] * 255).round().astype("uint8")
    Image.fromarray(pixels).save(path)
    names = datasets.info("fashion_mini").class_names
    return int(labels[IMAGE]), names


def serve(export):
    """Starts the server on a free port; returns process and address."""
    words = ("serve", export, "--port", 0, "--embedded")
    print("$ rs-keras", *words, flush=True)
    server = subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, text=True
    )
    for line in server.stdout:
        print(line, end="", flush=True)
        address = re.search(r"(?:localhost|[\d.]+|\[[\d:a-f]+\]):\d+", line)
        if address:
            return server, address[0]
    raise SystemExit("the server ended before it opened its port")


def main():
    FOLDER.mkdir(exist_ok=True)
    run, log = FOLDER / "smoothmix", FOLDER / "smoothmix.tsv"
    stage(1, "train SmoothMix on 4,000 bundled images")
    call(
        *("train", "fashion_mini", "--method", "smoothmix", "--sigma", 0.25),
        *("--epochs", 12, "--out", run, "--resume"),
    )
    stage(2, "certify 40 test images, 10,000 noisy copies each")
    call(
        *("certify", "fashion_mini", "--model", run, "--skip", 25),
        *("--n", 10_000, "--seed", 1, "--out", log),
    )
    stage(3, "the table and the curve")
    call("table", log)
    call("plot", log, "--out", FOLDER / "curve.png")
    stage(4, "the report page")
    call("report", log, "--out", FOLDER / "report.html")
    stage(5, "export the certifier for TF Serving")
    export = FOLDER / "exports" / "fashion"
    if not (export / "1").is_dir():
        call("export", run, "--out", export, "--n", 10_000)
    stage(6, "serve it")
    picture = FOLDER / "image.png"
    label, names = save_image(picture)
    server, address = serve(export)
    try:
        stage(7, f"one request: an image of class {label}, {names[label]}")
        call(
            *("request", address, "--model-name", "fashion"),
            *("--image", picture),
        )
    finally:
        server.terminate()
        server.wait(30)
    print(
        f"""
Done in {time.monotonic() - BEGUN:.0f} s. Next steps:
  open {FOLDER}/report.html               every certified image, by radius
  rs-keras train mnist --method smoothmix --sigma 1.0 --out runs/mnist
  rs-keras decide fashion_mini --model {run} --radius 0.25,0.5 --max-examples 9
  rs-keras serve {export}     then send requests from another terminal
  rs-keras --help"""
    )


if __name__ == "__main__":
    main()
