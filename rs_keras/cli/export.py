"""Exports a certifier for TF Serving, or shows what an export holds.

rs-keras export runs/mnist --out exports/mnist
"""

import argparse

from rs_keras.cli import _certification

HELP = "exports a certifier for TF Serving, or shows what an export holds"
EXAMPLE = "rs-keras export runs/mnist --out exports/mnist"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's flags."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="CHECKPOINT",
        help=_certification.CHECKPOINT,
    )
    parser.add_argument(
        "--out", metavar="DIR", help="the folder of all versions: 1/, 2/, ..."
    )
    parser.add_argument(
        "--show",
        metavar="DIR",
        help="instead: print what an export (or one version of it) holds",
    )
    _certification.add_certifier_arguments(parser)
    for flag, default, meaning in (
        ("--n0", 100, "draws with which `certify` selects the class"),
        ("--n", 10_000, "draws with which `certify` bounds it"),
        ("--predict-n", 1_000, "draws of `predict`"),
        ("--max-n", 1_000_000, "the most draws a row of one request"),
    ):
        parser.add_argument(
            flag,
            type=int,
            default=default,
            metavar="N",
            help=f"{meaning} (default: {default})",
        )
    parser.add_argument(
        "--decide-n",
        type=int,
        metavar="N",
        help="the most draws of `decide` (default: 100000, or --n0 and --max-n "
        "together where that is less)",
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="Cohen et al.'s bound on the top class alone",
    )
    parser.add_argument(
        "--seeds",
        default="fresh",
        help="fresh (new ones for each request) or keyed (by the image and the "
        "key in RS_KERAS_SEED_KEY, or one made now; default: %(default)s)",
    )
    parser.add_argument(
        "--image-shape",
        metavar="H,W,C",
        type=_shape,
        help="where the model does not tell",
    )
    parser.add_argument(
        "--class-names", metavar="A,B,...", help="for clients to show"
    )
    parser.add_argument(
        "--image-bytes",
        action="store_true",
        help="also take PNG and JPEG files (predict_bytes, certify_bytes)",
    )
    parser.add_argument(
        "--no-warmup",
        action="store_true",
        help="without the requests that a server runs as it loads",
    )
    parser.add_argument(
        "--version",
        type=int,
        metavar="N",
        help="of the export (default: the next)",
    )


def run(args: argparse.Namespace) -> None:
    """Writes a version, or prints one."""
    if args.show is not None:
        from rs_keras.export.show import show

        print(show(args.show))
        return
    if args.model is None or args.out is None:
        raise ValueError(
            "either CHECKPOINT and --out, or --show, must be given"
        )
    from rs_keras.export import export_certifier

    certifier = _certification.certifier_of(args)
    names = args.class_names
    version = export_certifier(
        certifier,
        args.out,
        n0=args.n0,
        n=args.n,
        alpha=args.alpha,
        predict_n=args.predict_n,
        max_n=args.max_n,
        version=args.version,
        runner_up=not args.plain,
        class_names=None if names is None else names.split(","),
        image_bytes=args.image_bytes,
        warmup=not args.no_warmup,
        seed=args.seeds,
        image_shape=args.image_shape,
        decide_n=args.decide_n,
    )
    print(
        f"{version}: sigma {certifier.sigma}, n0 {args.n0}, n {args.n}, "
        f"alpha {args.alpha}, seeds {args.seeds}. Serve it with: "
        f"rs-keras serve {args.out}"
    )


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))
