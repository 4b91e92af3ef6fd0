"""Photographs: files of any size, orientation and mode, as images of one size.

A certificate is about the image that the classifier gets. Where a file is
resized before, it is about the resized image: a small change of the file is a
change of the resized image, but the radius is measured in the latter.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rs_keras._checks import check_choice
from rs_keras._checks import check_count

FITS = ("crop", "pad", "stretch")

# Behind the path, in the name of a data set.
_IN_NAME = re.compile(r"\?resize=(\d+),(\d+)&fit=(\w+)")


@dataclass(frozen=True)
class Resize:
    """How photographs become images of one size.

    Attributes:
        height: In pixels.
        width: In pixels.
        fit: "crop" keeps the proportions and cuts off what is too long, alike
            on both sides; "pad" keeps them and adds black bars; "stretch" does
            not keep them.

    Raises:
        ValueError: For a size below 1, or another fit.

    Example:

    >>> from PIL import Image
    >>> from rs_keras.datasets.photographs import Resize
    >>> resize = Resize(8, 8, "pad")
    >>> pixels = resize.pixels(Image.new("RGB", [20, 10], "white"), channels=1)
    >>> pixels.shape, pixels[:, 0, 0].tolist()
    ((8, 8, 1), [0, 0, 255, 255, 255, 255, 0, 0])
    >>> resize.in_name("image_folder:photos")
    'image_folder:photos?resize=8,8&fit=pad'
    """

    height: int
    width: int
    fit: str = "crop"

    def __post_init__(self) -> None:
        check_count("resize", self.height)
        check_count("resize", self.width)
        check_choice("fit", self.fit, FITS)

    def pixels(self, picture: Any, channels: int) -> np.ndarray:
        """Returns an upright picture of Pillow as uint8 [H, W, channels].

        Bilinear, with antialiasing.
        """
        from PIL import Image
        from PIL import ImageOps

        size, method = (self.width, self.height), Image.Resampling.BILINEAR
        plain = as_mode(picture, channels)
        if self.fit == "crop":
            plain = ImageOps.fit(plain, size, method)
        elif self.fit == "pad":
            plain = ImageOps.pad(plain, size, method)
        else:
            plain = plain.resize(size, method)
        return np.asarray(plain).reshape(self.height, self.width, channels)

    def in_name(self, name: str) -> str:
        """Returns the name of a data set of photographs resized so."""
        return f"{name}?resize={self.height},{self.width}&fit={self.fit}"

    def settings(self) -> dict[str, Any]:
        """Returns what logs, exports and statements say of it."""
        return {"resize": [self.height, self.width], "fit": self.fit}

    @classmethod
    def in_settings(cls, settings: Mapping[str, Any]) -> "Resize | None":
        """Returns what the settings of a log or an export say of it."""
        if "resize" not in settings:
            return None
        height, width = settings["resize"]
        return cls(height, width, settings["fit"])


def split_name(name: str) -> tuple[str, Resize | None]:
    """Returns a data set's name without the resizing, and the resizing.

    Raises:
        ValueError: For a resizing of another size or fit.

    Example:

    >>> from rs_keras.datasets.photographs import split_name
    >>> split_name("image_folder:photos?resize=32,48&fit=crop")
    ('image_folder:photos', Resize(height=32, width=48, fit='crop'))
    >>> split_name("mnist")
    ('mnist', None)
    """
    found = _IN_NAME.search(name)
    if found is None:
        return name, None
    height, width, fit = found.groups()
    rest = name[: found.start()] + name[found.end() :]
    return rest, Resize(int(height), int(width), fit)


def as_mode(picture: Any, channels: int) -> Any:
    """Returns a picture as grey (1 channel) or RGB (3), upright.

    The orientation that a camera noted (EXIF) is applied. An alpha channel is
    dropped, not blended: the colours stay as they are stored. Colours become
    grey by their luminance (ITU-R 601); grey is repeated in three channels.

    Args:
        picture: Of Pillow.
        channels: 1 or 3.

    Raises:
        ValueError: For more than 8 bits a channel.
    """
    from PIL import ImageOps

    if picture.mode in ("I", "F") or picture.mode.startswith("I;"):
        raise ValueError(
            "a photograph must have 8 bits a channel. "
            f"Received: {picture.mode!r}"
        )
    upright = ImageOps.exif_transpose(picture)
    if upright.mode in ("P", "PA"):
        upright = upright.convert("RGBA")
    if upright.mode in ("LA", "RGBA"):
        upright = upright.convert(upright.mode[:-1])
    return upright.convert("L" if channels == 1 else "RGB")


def read_photograph(
    path: str | Path, channels: int, resize: Resize
) -> np.ndarray:
    """Reads an image file as uint8 [H, W, channels].

    Args:
        path: A PNG, JPEG, BMP or GIF file (its first frame).
        channels: 1 or 3.
        resize: What it is resized to.

    Raises:
        ValueError: If the file is no image, or has more than 8 bits a channel.
        OSError: If it cannot be read.

    Example:

    >>> from PIL import Image
    >>> from rs_keras.datasets.photographs import Resize, read_photograph
    >>> Image.new("L", [30, 20], 51).save("grey.png")
    >>> read_photograph("grey.png", 3, Resize(4, 4))[0, 0]
    array([51, 51, 51], dtype=uint8)
    """
    with opened(path) as picture:
        return resize.pixels(picture, channels)


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[Any]:
    """Opens an image file; what fails in the block is the fault of the file.

    Pillow's readers raise nearly anything for a damaged one.

    Yields:
        The picture, of Pillow.

    Raises:
        ValueError: If the file is no image, is damaged, or has no pixels.
        OSError: If there is no such file.

    Example:

    >>> from rs_keras.datasets.photographs import opened
    >>> with open("no.png", "wb") as file:
    ...     _ = file.write(b"nothing")
    >>> with opened("no.png") as picture:
    ...     size = picture.size
    Traceback (most recent call last):
    ValueError: not an image: no.png (...)
    """
    from PIL import Image

    # Not of a pipe, which would be waited for; a missing file is an OSError.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"not an image: {path} (it is no regular file)")
    try:
        with Image.open(path) as picture:
            if not (picture.width and picture.height):
                raise ValueError("it has no pixels")
            yield picture
    except Exception as error:
        told = str(error) or type(error).__name__
        raise ValueError(f"not an image: {path} ({told})") from error
