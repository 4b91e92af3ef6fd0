"""Classifiers of other frameworks: functions of NumPy arrays."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras._checks import check_count
from rs_keras._checks import check_flag

Gradient = Callable[[tf.Tensor], tf.Tensor]


class NumpyClassifier:
    """A function of NumPy arrays as a classifier; `from_numpy` makes it.

    Attributes:
        function: The function.
        num_classes: Columns of its logits.
        channels_first: Whether it takes [m, C, H, W].

    Example:

    >>> import numpy as np
    >>> from rs_keras.classifiers.numpy_functions import NumpyClassifier
    >>> classifier = NumpyClassifier(lambda x: x[:, 0, 0, :2], 2)
    >>> classifier(np.ones([3, 4, 4, 2], np.float32)).shape.as_list()
    [3, 2]
    """

    def __init__(
        self,
        function: Callable[[np.ndarray], Any],
        num_classes: int,
        channels_first: bool = False,
    ) -> None:
        if not callable(function):
            raise ValueError(
                "`function` must be callable with a NumPy array of images. "
                f"Received: function={function!r}"
            )
        self.function = function
        self.num_classes = check_count("num_classes", num_classes, 2)
        self.channels_first = check_flag("channels_first", channels_first)
        # Interpreters such as LiteRT's have one set of buffers.
        self._one_at_a_time = threading.Lock()

    def __call__(self, images: Any) -> tf.Tensor:
        images = tf.convert_to_tensor(images)
        logits = self._in_graph(images)
        logits.set_shape([images.shape[0], self.num_classes])
        return logits

    @tf.autograph.experimental.do_not_convert
    def _in_graph(self, images: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def call(images: tf.Tensor) -> tuple[tf.Tensor, Gradient]:
            # float64 holds logits of every other type exactly.
            logits = tf.numpy_function(self._run, [images], tf.float64)
            return logits, _no_gradient

        return call(images)

    def _run(self, images: np.ndarray) -> np.ndarray:
        """Calls the function on one pass, and checks what it returns."""
        if self.channels_first:
            images = images.transpose(0, 3, 1, 2)
        # Copies: the function may write into its argument, which is a tensor's
        # memory, and return memory that it writes into in its next call.
        with self._one_at_a_time:
            returned = self.function(np.array(images, order="C"))
            logits = np.array(returned, np.float64)
        if logits.shape != (len(images), self.num_classes):
            raise ValueError(
                "`function` must return one row of `num_classes` logits an "
                f"image, shape [{len(images)}, {self.num_classes}]. "
                f"Received: shape={list(logits.shape)}"
            )
        return logits


def _no_gradient(upstream: tf.Tensor) -> tf.Tensor:
    raise ValueError(
        "`model` must be made of TensorFlow operations where gradients are "
        "taken of it (training, adversaries, soft_predict in a tape, a sigma "
        "for each image). Received: a function of NumPy arrays, from "
        "`from_numpy`"
    )


def from_numpy(
    function: Callable[[np.ndarray], Any],
    num_classes: int,
    channels_first: bool = False,
) -> NumpyClassifier:
    """Makes a classifier of a function of NumPy arrays, of any framework.

    PyTorch, ONNX Runtime, LiteRT: whatever turns an array of images into an
    array of logits can be certified. It cannot be trained here, nor exported:
    TensorFlow Serving runs TensorFlow operations only, and the function is
    Python code of this process.

    The function is called with one pass of noisy images at a time, never twice
    at the same time, and gets an array of its own. Like every classifier it
    must be in inference mode (`module.eval()` in PyTorch), deterministic, and
    answer row by row.

    Args:
        function: From images, float32 [m, H, W, C], the pixels in [0, 1] with
            the noise added, to logits [m, num_classes]: an array, or what
            `numpy.asarray` takes. m varies from call to call.
        num_classes: Number of logits, >= 2.
        channels_first: Whether the function takes [m, C, H, W], as PyTorch
            does.

    Returns:
        A classifier for `Certifier`.

    Raises:
        ValueError: If an argument is none of these. Logits of another shape
            are refused in the certifier's first call.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras.classifiers import from_numpy
    >>> weights = np.random.default_rng(1).normal(size=[3 * 8 * 8, 10])
    >>> def logits(images):  # [m, 3, 8, 8]
    ...     return images.reshape(len(images), -1) @ weights
    >>> classifier = from_numpy(logits, num_classes=10, channels_first=True)
    >>> certifier = Certifier(classifier, sigma=0.25)
    >>> image = np.full([1, 8, 8, 3], 0.5, np.float32)
    >>> certifier.certify(image, n=1_000, seed=7).counts.shape
    (1, 10)
    """
    return NumpyClassifier(function, num_classes, channels_first)
