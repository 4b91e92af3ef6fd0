"""`rs-keras request`: the certificate of an image, from servers."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from rs_keras import _npz
from rs_keras.cli import _certification
from rs_keras.cli import _photographs
from rs_keras.datasets.photographs import Resize
from rs_keras.serving import CertificationClient
from rs_keras.serving.client.served_model import ServedModel


def run(args: argparse.Namespace) -> int:
    with _certification.client_of(args, args.address) as client:
        if args.image is None and args.npz is None:
            _describe(client, args)
            return 0
        if args.out is not None:
            _check_receipt(args)
        resize = resize_of(args, client.model)
        images, names = images_of(args, client.model.image_shape, resize)
        answer = _request(client, images, args)
        if args.out is not None:
            Path(args.out).write_text(answer.receipt, encoding="utf-8")
        for row, name in enumerate(names):
            if args.json:
                print(json.dumps(_values(name, answer, row)))
            else:
                note = _photographs.note(resize if args.image else None)
                print(f"{name}: {_sentence(answer, row)}{note}")
    return int(not (answer.label >= 0).all())


def _describe(client: CertificationClient, args: argparse.Namespace) -> None:
    model = client.model
    facts = {
        "model": model.name,
        "version": model.version,
        **model.metadata,
    }
    if args.json:
        print(json.dumps(facts))
        return
    print(
        f"{model.name}, version {model.version}: images "
        f"{list(model.image_shape)}, {model.num_classes} classes, "
        f"sigma={model.sigma:g} n={facts['n']} alpha={facts['alpha']:g}\n"
        f"{facts['guarantee']}"
    )


def _check_receipt(args: argparse.Namespace) -> None:
    if args.predict or args.radius is not None:
        raise ValueError(
            "--receipt must not be given with --predict or --radius, which "
            f"give no certificate. Received: --receipt {args.out}"
        )
    # Found out now, not after the draws.
    with open(args.out, "a", encoding="utf-8"):
        pass


def resize_of(args: argparse.Namespace, model: ServedModel) -> Resize | None:
    """Returns what the flags say, or the export, of its photographs."""
    given = _photographs.resize_of(args)
    return given or Resize.in_settings(model.metadata)


def images_of(
    args: argparse.Namespace,
    shape: tuple[int, int, int],
    resize: Resize | None,
) -> tuple[np.ndarray, list[str]]:
    """Returns the images of --image or --npz, and their names."""
    if args.image is not None:
        read = [
            _certification.read_image(path, shape, resize)
            for path in args.image
        ]
        return np.concatenate(read), args.image
    complaint = (
        "--npz must be a NumPy archive (numpy.savez) with an array `images`. "
        f"Received: {args.npz}"
    )
    with _npz.opened(args.npz, complaint) as archive:
        images = archive["images"]
        names = [f"{args.npz}[{row}]" for row in range(len(images))]
    return images, names


def _request(
    client: CertificationClient,
    images: np.ndarray,
    args: argparse.Namespace,
) -> Any:
    shared = {"alpha": args.alpha, "seed": args.seed, "chunk": args.chunk}
    if args.predict:
        if args.n0 is not None:
            raise ValueError(
                "--n0 must not be given with --predict, which selects nothing. "
                f"Received: --n0 {args.n0}"
            )
        return client.predict(images, n=args.n, **shared)
    if args.radius is not None:
        limit = {} if args.n is None else {"n_max": args.n}
        return client.decide(images, args.radius, n0=args.n0, **limit, **shared)
    receipt = args.out is not None
    return client.certify(
        images, n0=args.n0, n=args.n, receipt=receipt, **shared
    )


def _sentence(answer: Any, row: int) -> str:
    if hasattr(answer, "sentence"):
        return str(answer.sentence(row))
    if answer.label[row] < 0:
        return f"abstains (p-value {answer.p_value[row]:.3g})"
    return f"class {answer.label[row]} (p-value {answer.p_value[row]:.3g})"


def _values(name: str, answer: Any, row: int) -> dict[str, Any]:
    arrays = {
        key: value[row].tolist()
        for key, value in vars(answer).items()
        if isinstance(value, np.ndarray)
    }
    settings = getattr(answer, "settings", {})
    return {"image": name, **arrays, "settings": dict(settings)}
