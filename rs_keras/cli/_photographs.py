"""Photographs on the command line: --resize and --fit, and image files."""

import argparse
from pathlib import Path
from typing import Any

from rs_keras.datasets.photographs import FITS
from rs_keras.datasets.photographs import Resize

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")


def is_image(data: str) -> bool:
    """Whether DATA is the name of an image file."""
    return Path(data).suffix.lower() in _IMAGES


def resize_of(args: argparse.Namespace) -> Resize | None:
    """Returns what --resize and --fit ask for."""
    if args.resize is None:
        if args.fit is not None:
            raise ValueError(f"--fit needs --resize H,W. Received: {args.fit}")
        return None
    if len(args.resize) != 2:
        raise ValueError(
            f"--resize must be two numbers, H,W. Received: {args.resize}"
        )
    height, width = args.resize
    return Resize(height, width, args.fit or FITS[0])


def data_name(args: argparse.Namespace) -> Any:
    """Returns the name of the data set, with the resizing in it."""
    resize = resize_of(args)
    if resize is None or args.data is None or is_image(args.data):
        return args.data
    return resize.in_name(args.data)


def note(resize: Resize | None) -> str:
    """Says that a verdict is about the resized image; empty if none is."""
    if resize is None:
        return ""
    size = f"{resize.height} x {resize.width}"
    return f" (of the image resized to {size}, {resize.fit})"
