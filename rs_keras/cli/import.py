"""`rs-keras import`: a published PyTorch checkpoint as a `.keras` file."""

import argparse
from pathlib import Path

from rs_keras.models import from_torch_checkpoint


def run(args: argparse.Namespace) -> None:
    if Path(args.out).suffix != ".keras":
        raise ValueError(
            f"`--out` must end in .keras. Received: --out={args.out}"
        )
    model = from_torch_checkpoint(
        args.checkpoint, args.arch, args.mean, args.std
    )
    model.save(args.out)
    height, width, channels = model.input_shape[1:]
    normalised = "normalization" in [layer.name for layer in model.layers]
    print(
        f"{args.out}: {model.name}, images {height}x{width}x{channels} in "
        f"[0, 1], {model.output_shape[-1]} classes, "
        f"{'mean and std inside' if normalised else 'no normalisation'}. "
        f"Certify it with: rs-keras certify DATA --model {args.out} "
        "--sigma SIGMA"
    )
