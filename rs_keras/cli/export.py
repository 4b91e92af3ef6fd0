"""`rs-keras export`: a certifier for TF Serving, or a look into an export."""

import argparse

from rs_keras.cli import _certification
from rs_keras.cli import _photographs
from rs_keras.export import export_certifier
from rs_keras.export.show import show


def run(args: argparse.Namespace) -> None:
    if args.show is not None:
        print(show(args.show))
        return
    if args.model is None or args.out is None:
        raise ValueError(
            "either CHECKPOINT and --out, or --show, must be given"
        )
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
        bound=args.bound,
        runner_up=not args.plain,
        class_names=None if names is None else names.split(","),
        image_bytes=args.image_bytes,
        warmup=not args.no_warmup,
        seed=args.seeds,
        image_shape=args.image_shape,
        decide_n=args.decide_n,
        resize=_photographs.resize_of(args),
    )
    print(
        f"{version}: sigma {certifier.sigma}, n0 {args.n0}, n {args.n}, "
        f"alpha {args.alpha}, seeds {args.seeds}. Serve it with: "
        f"rs-keras serve {args.out}"
    )
