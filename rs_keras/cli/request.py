"""Ask a server, or several, about an image.

rs-keras request localhost:8500 --model-name mnist --image digit.png
"""

import argparse
import json
import zipfile
import zlib
from typing import TYPE_CHECKING
from typing import Any

from rs_keras.cli import _certification
from rs_keras.cli import _client

if TYPE_CHECKING:
    import numpy as np

    from rs_keras.serving import CertificationClient

HELP = "asks servers for the certificate of an image"
EXAMPLE = "rs-keras request localhost:8500 --model-name mnist --image digit.png"

# What NumPy raises where there is no archive, or one that is cut short.
_UNREADABLE = (
    AttributeError,
    EOFError,
    KeyError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address",
        metavar="ADDRESS",
        help="host:port; several with commas between share the draws; "
        "dns:///name:port is every machine of a name",
    )
    images = parser.add_mutually_exclusive_group()
    images.add_argument(
        "--image",
        action="append",
        metavar="FILE",
        help="a PNG, JPEG, BMP or GIF file of the model's size; may be "
        "repeated. Without images, tells what is served",
    )
    images.add_argument(
        "--npz",
        metavar="FILE",
        help="NumPy archive with `images`, [B, H, W, C]: floats in [0, 1] or "
        "uint8",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object an image"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--predict", action="store_true", help="the label alone, without radius"
    )
    what.add_argument(
        "--radius",
        type=float,
        metavar="R",
        help="decides whether the label holds within R, with few draws",
    )
    parser.add_argument(
        "--n",
        type=int,
        help="draws, made by all servers (default: the export's own number); "
        "with --radius the most",
    )
    parser.add_argument(
        "--n0", type=int, help="draws that select the class (default: export's)"
    )
    parser.add_argument(
        "--alpha", type=float, help="probability of error (default: export's)"
    )
    parser.add_argument(
        "--seed", type=int, help="of the noise (default: fresh entropy)"
    )
    parser.add_argument(
        "--chunk",
        type=int,
        metavar="N",
        help="draws a request (default: adapts)",
    )
    _client.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    with _client.client_of(args, args.address) as client:
        if args.image is None and args.npz is None:
            _describe(client, args)
            return 0
        images, names = _images(args, client)
        found = _ask(client, images, args)
        for row, name in enumerate(names):
            if args.json:
                print(json.dumps(_values(name, found, row)))
            else:
                print(f"{name}: {_sentence(found, row)}")
    return int(not (found.label >= 0).all())


def _describe(client: "CertificationClient", args: argparse.Namespace) -> None:
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


def _images(
    args: argparse.Namespace, client: "CertificationClient"
) -> "tuple[np.ndarray, list[str]]":
    import numpy as np

    if args.image is not None:
        shape = client.model.image_shape
        read = [_certification.read_image(path, shape) for path in args.image]
        return np.concatenate(read), args.image
    try:
        with open(args.npz, "rb") as file, np.load(file) as archive:
            images = archive["images"]
        names = [f"{args.npz}[{row}]" for row in range(len(images))]
    except _UNREADABLE as error:
        raise ValueError(
            "--npz must be a NumPy archive (numpy.savez) with an array "
            f"`images`. Received: {args.npz}"
        ) from error
    return images, names


def _ask(
    client: "CertificationClient",
    images: "np.ndarray",
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
        most = {} if args.n is None else {"n_max": args.n}
        return client.decide(images, args.radius, n0=args.n0, **most, **shared)
    return client.certify(images, n0=args.n0, n=args.n, **shared)


def _sentence(found: Any, row: int) -> str:
    if hasattr(found, "sentence"):
        return str(found.sentence(row))
    if found.label[row] < 0:
        return f"abstains (p-value {found.p_value[row]:.3g})"
    return f"class {found.label[row]} (p-value {found.p_value[row]:.3g})"


def _values(name: str, found: Any, row: int) -> dict[str, Any]:
    import numpy as np

    arrays = {
        key: value[row].tolist()
        for key, value in vars(found).items()
        if isinstance(value, np.ndarray)
    }
    settings = getattr(found, "settings", {})
    return {"image": name, **arrays, "settings": dict(settings)}
