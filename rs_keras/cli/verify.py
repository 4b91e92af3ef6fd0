"""`rs-keras verify`: checks a receipt by repeating its draws."""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rs_keras import serving
from rs_keras._checks import check_count
from rs_keras._checks import check_images
from rs_keras.cli import _certification
from rs_keras.cli.request import images_of
from rs_keras.cli.request import resize_of
from rs_keras.export import metadata
from rs_keras.export import versions
from rs_keras.serving import receipts
from rs_keras.serving import verification
from rs_keras.serving.receipts import Receipt

_NAME = "verified"


def run(args: argparse.Namespace) -> int:
    draws = None if args.all else check_count("--draws", args.draws)
    receipt = receipts.read(args.receipt)
    shape = receipt.model.image_shape
    images, names = images_of(args, shape, resize_of(args, receipt.model))
    images = check_images(images, shape)
    with _source(args, receipt) as source:
        verdicts = [
            verification.verify(receipt, image, source, draws)
            for image in images
        ]
    for name, verdict in zip(names, verdicts, strict=True):
        print(f"{name}: {verdict.text}")
    return int(not all(verdict.holds for verdict in verdicts))


@contextmanager
def _source(
    args: argparse.Namespace, receipt: Receipt
) -> Iterator[receipts.Source]:
    """Yields what repeats draws: servers, an export or a checkpoint."""
    if args.servers is not None:
        with _certification.client_of(args, args.servers) as client:
            yield client
    elif (folder := _export_of(args.model, receipt)) is not None:
        with _served(folder) as client:
            yield client
    else:
        facts = receipt.model.metadata
        options = {"noise": facts["noise"], "dtype": None}
        certifier = _certification.load_certifier(
            args.model, facts["sigma"], **options
        )
        if certifier.dtype != facts["dtype"]:
            options["dtype"] = facts["dtype"]
            certifier = _certification.load_certifier(
                args.model, facts["sigma"], **options
            )
        yield certifier


def _export_of(path: str, receipt: Receipt) -> Path | None:
    """Returns the folder of a version of an export; None for other models.

    Of several versions the one that the receipt is about, else the newest.
    """
    folder = Path(path)
    if (folder / metadata.FILE).is_file():
        return folder
    folders = [
        versions.folder_of(folder, number)
        for number in versions.existing(folder)
    ]
    exports = [one for one in folders if (one / metadata.FILE).is_file()]
    wanted = receipt.model.identity
    same = [
        one
        for one in exports
        if metadata.identity(metadata.read(one)) == wanted
    ]
    return next(reversed([*exports, *same]), None)


@contextmanager
def _served(folder: Path) -> Iterator[receipts.Source]:
    """Serves one version of an export to this process alone."""
    if not folder.name.isdigit():
        raise ValueError(
            "--model must name the folder of an export, or of one of its "
            f"versions, such as exports/mnist/1. Received: {folder}"
        )
    with tempfile.TemporaryDirectory() as private:
        server = serving.EmbeddedServer(
            folder.absolute().parent,
            model_name=_NAME,
            port=None,
            unix_socket=f"{private}/socket",
            versions=[int(folder.name)],
            warmup=False,
        )
        with (
            server,
            serving.CertificationClient(server.address, _NAME) as client,
        ):
            yield client
