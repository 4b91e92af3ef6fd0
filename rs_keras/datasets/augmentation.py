"""The papers' image transformations, as functions of given random numbers.

Each takes its randomness as numbers in [0, 1), so that an augmented image is
a function of (image, numbers) and a training run can be repeated exactly.

References:
- [Cohen et al., 2019](https://arxiv.org/abs/1902.02918), whose code sets the
  transformations of CIFAR and ImageNet
"""

import math

import tensorflow as tf

# How many numbers in [0, 1) each transformation takes for one image.
CROP_AND_FLIP_NUMBERS = 3
_TRIES = 10
RESIZED_CROP_NUMBERS = 2 * _TRIES + 3


def crop_and_flip(
    images: tf.Tensor, numbers: tf.Tensor, pad: int = 4
) -> tf.Tensor:
    """Shifts each image by up to `pad` pixels and mirrors every second one.

    The image is padded with zeros, a window of its own size is cut out, and
    with probability 1/2 the columns are reversed. The windows of
    (2 * pad + 1)**2 places are equally likely.

    Args:
        images: [B, H, W, C], of any type.
        numbers: [B, 3] in [0, 1): vertical place, horizontal place, mirroring
            (below 1/2).
        pad: In pixels, on every side.

    Returns:
        A tensor like `images`.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.datasets.augmentation import crop_and_flip
    >>> image = tf.reshape(tf.range(4.0), [1, 2, 2, 1])
    >>> crop_and_flip(image, [[0.4, 0.4, 0.0]], pad=1)[0, :, :, 0].numpy()
    array([[1., 0.],
           [3., 2.]], dtype=float32)
    """
    images = tf.convert_to_tensor(images)
    numbers = tf.convert_to_tensor(numbers)
    height, width, channels = images.shape[1:]
    places = tf.cast(numbers[:, :2] * (2 * pad + 1), tf.int32)
    columns = tf.range(width)
    mirrored = tf.where(numbers[:, 2:] < 0.5, columns[::-1], columns)
    rows = places[:, :1] + tf.range(height)
    columns = places[:, 1:] + mirrored
    wide = width + 2 * pad
    padded = tf.pad(images, [[0, 0], [pad, pad], [pad, pad], [0, 0]])
    # One gather over whole pixels: two, by row and column, take twice as long.
    pixels = tf.reshape(padded, [-1, (height + 2 * pad) * wide, channels])
    where = rows[:, :, None] * wide + columns[:, None, :]
    return tf.gather(pixels, where, axis=1, batch_dims=1)


def resized_crop(
    encoded: tf.Tensor, numbers: tf.Tensor, size: int = 224
) -> tf.Tensor:
    """Decodes a random part of an image, resizes it, mirrors every second one.

    The part covers 8% to 100% of the area, its width / height is log-uniform
    in [3/4, 4/3]; the first of ten tries that fits is taken, else the largest
    central part of an allowed shape.

    Args:
        encoded: The bytes of one JPEG, PNG, GIF or BMP file.
        numbers: [23] in [0, 1): ten for the area, ten for the shape, two for
            the place, one for mirroring (below 1/2).
        size: Height and width of the result.

    Returns:
        float32 [size, size, 3] in [0, 1].

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.datasets import augmentation
    >>> png = tf.io.encode_png(tf.zeros([300, 400, 3], tf.uint8))
    >>> numbers = tf.random.stateless_uniform(
    ...     [augmentation.RESIZED_CROP_NUMBERS], seed=[7, 0])
    >>> augmentation.resized_crop(png, numbers, size=32).shape.as_list()
    [32, 32, 3]
    """
    is_jpeg = tf.io.is_jpeg(encoded)
    shape = tf.cond(
        is_jpeg,
        lambda: tf.io.extract_jpeg_shape(encoded),
        lambda: tf.shape(_decode(encoded, 3)),
    )
    window = _window(shape[0], shape[1], numbers)
    part = tf.cond(
        is_jpeg,
        # Decodes only what the window needs.
        lambda: tf.io.decode_and_crop_jpeg(encoded, window, channels=3),
        lambda: tf.slice(
            _decode(encoded, 3),
            [window[0], window[1], 0],
            [window[2], window[3], 3],
        ),
    )
    image = _resize(part, tf.constant([size, size]))
    image = tf.cond(numbers[-1] < 0.5, lambda: image[:, ::-1], lambda: image)
    return tf.ensure_shape(image, [size, size, 3])


def resized_centre(
    encoded: tf.Tensor, size: int = 224, shorter: int = 256
) -> tf.Tensor:
    """Decodes an image, resizes its shorter side and cuts out the centre.

    Args:
        encoded: The bytes of one JPEG, PNG, GIF or BMP file.
        size: Height and width of the result, <= `shorter`.
        shorter: What the shorter side is resized to.

    Returns:
        float32 [size, size, 3] in [0, 1].

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.datasets import augmentation
    >>> png = tf.io.encode_png(tf.zeros([300, 400, 3], tf.uint8))
    >>> augmentation.resized_centre(png).shape.as_list()
    [224, 224, 3]
    """
    image = _decode(encoded, 3)
    shape = tf.shape(image)[:2]
    # Integer division, as in torchvision: the longer side is rounded down.
    image = _resize(image, shape * shorter // tf.reduce_min(shape))
    extra = tf.cast(tf.shape(image)[:2] - size, tf.float32)
    top, left = tf.unstack(tf.cast(tf.round(extra / 2), tf.int32))
    return tf.ensure_shape(
        image[top : top + size, left : left + size], [size, size, 3]
    )


def decode(encoded: tf.Tensor, channels: int) -> tf.Tensor:
    """Decodes one image file to float32 [H, W, channels] in [0, 1].

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.datasets import augmentation
    >>> png = tf.io.encode_png(tf.constant([[[0], [51], [255]]], tf.uint8))
    >>> augmentation.decode(png, channels=1)[0, :, 0].numpy()
    array([0. , 0.2, 1. ], dtype=float32)
    """
    return tf.cast(_decode(encoded, channels), tf.float32) / 255.0


def _decode(encoded: tf.Tensor, channels: int) -> tf.Tensor:
    return tf.io.decode_image(
        encoded, channels=channels, expand_animations=False
    )


def _resize(image: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Bilinear, with the antialiasing that Pillow (torchvision) applies."""
    image = tf.image.resize(image, size, antialias=True)
    # The weights of a pixel sum to 1 only up to rounding.
    return tf.clip_by_value(image / 255.0, 0.0, 1.0)


def _window(
    height: tf.Tensor, width: tf.Tensor, numbers: tf.Tensor
) -> tf.Tensor:
    """Returns (top, left, height, width) of the random part, int32 [4]."""
    high, wide = tf.cast(height, tf.float32), tf.cast(width, tf.float32)
    area = high * wide * (0.08 + 0.92 * numbers[:_TRIES])
    log_shape = math.log(4 / 3) * (2 * numbers[_TRIES : 2 * _TRIES] - 1)
    widths = tf.round(tf.sqrt(area * tf.exp(log_shape)))
    heights = tf.round(tf.sqrt(area * tf.exp(-log_shape)))
    # The last row always fits: the whole image, cut to an allowed shape.
    widths = tf.concat([widths, [tf.minimum(wide, tf.round(high * 4 / 3))]], 0)
    heights = tf.concat(
        [heights, [tf.minimum(high, tf.round(wide * 4 / 3))]], 0
    )
    fits = (widths >= 1) & (widths <= wide) & (heights >= 1) & (heights <= high)
    fallback = tf.one_hot(_TRIES, _TRIES + 1, on_value=True, off_value=False)
    chosen = tf.argmax(tf.cast(fits | fallback, tf.int32))
    h, w = heights[chosen], widths[chosen]
    down, right = numbers[2 * _TRIES], numbers[2 * _TRIES + 1]
    middle = chosen == _TRIES
    top = tf.where(middle, tf.floor((high - h) / 2), _place(down, high - h))
    left = tf.where(middle, tf.floor((wide - w) / 2), _place(right, wide - w))
    return tf.cast(tf.stack([top, left, h, w]), tf.int32)


def _place(number: tf.Tensor, room: tf.Tensor) -> tf.Tensor:
    """One of 0, 1, .., room, equally likely."""
    # Rounding could carry the product up to room + 1.
    return tf.minimum(tf.floor(number * (room + 1)), room)
