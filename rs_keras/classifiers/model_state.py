"""Python state of a model, watched for edits that a traced graph misses.

A graph reads weights, which are variables, in each call. It reads layers,
attributes and closures only once, when it is traced.
"""

import contextlib
import functools
import hashlib
import types
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rs_keras._compat import is_bookkeeping
from rs_keras.classifiers.adapters import Logits
from rs_keras.classifiers.adapters import as_logits
from rs_keras.classifiers.adapters import prepared
from rs_keras.classifiers.adapters import traced_classifier
from rs_keras.classifiers.graphs import ConcreteFunction
from rs_keras.classifiers.graphs import is_same
from rs_keras.classifiers.numpy_functions import NumpyClassifier

# Objects of these libraries are compared by identity, not by content.
_LIBRARIES = frozenset(
    ("builtins", "keras", "numpy", "tensorflow", "absl", "threading", "_thread")
)
# Larger arrays and containers are compared by identity.
_MOST_BYTES = 2**20
_MOST_ITEMS = 1_000
_MOST_OBJECTS = 50_000

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))


class ModelState:
    """The Python state that a model can reach, as it is now.

    Plain values, small arrays and containers by what they hold, all else by
    identity: layers, functions and their closures, attributes of layers and of
    the caller's own objects. Not the values of variables.

    Args:
        model: A Keras model or any callable.

    Example:

    >>> import keras
    >>> from rs_keras.classifiers.model_state import ModelState
    >>> model = keras.Sequential([keras.Input([2]), keras.layers.Dense(3)])
    >>> before = ModelState(model)
    >>> model.set_weights([2 * weight for weight in model.get_weights()])
    >>> ModelState(model) == before
    True
    >>> model.layers[0].activation = keras.activations.relu
    >>> ModelState(model) == before
    False
    """

    def __init__(self, model: Any) -> None:
        self._tokens: list[Any] = []
        # Alive, so that no other object gets the identity of one of them.
        self._kept: list[Any] = []
        seen: set[int] = set()
        waiting = [model]
        while waiting and len(seen) < _MOST_OBJECTS:
            part = waiting.pop()
            if type(part) in _PLAIN:
                self._tokens.append(part)
                continue
            number = id(part)
            self._tokens.append(number)
            if number not in seen:
                seen.add(number)
                self._kept.append(part)
                waiting.extend(_parts(part))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelState) and self._tokens == other._tokens

    __hash__ = None  # type: ignore[assignment]


class WatchedModel:
    """A classifier that notices edits after its graphs are traced.

    Args:
        model: As in `as_logits`.
        num_classes: As in `as_logits`.

    Attributes:
        traced: The classifier as a traced function, by image shape.

    Raises:
        ValueError: If `model` cannot be called.

    Example:

    >>> import keras
    >>> from rs_keras.classifiers.model_state import WatchedModel
    >>> model = keras.Sequential([
    ...     keras.Input([4, 4, 1]), keras.layers.Flatten(),
    ...     keras.layers.Dense(3), keras.layers.Dense(2)])
    >>> watched = WatchedModel(model)
    >>> traced = watched.trace((4, 4, 1))
    >>> model.trainable = False  # the same function
    >>> watched.check_unchanged()
    >>> layer = model.pop()
    >>> try:
    ...     watched.check_unchanged()
    ... except ValueError as error:
    ...     print(error)  # doctest: +ELLIPSIS
    `model` must keep the layers and attributes ... make another certifier...
    """

    def __init__(self, model: Any, num_classes: int | None = None) -> None:
        self._model = model
        self._logits = as_logits(model, num_classes)
        self.traced: dict[tuple[int, ...], ConcreteFunction] = {}
        self._state: ModelState | None = None

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the logits; what graphs are traced of."""
        logits = self._logits(images)
        # Now: the first call may build layers, and a function of the caller's
        # may note its calls.
        self._note()
        return logits

    def prepared(self) -> Logits:
        """Returns the function with its weights made ready; for a loop."""
        ready = prepared(self._logits)

        def logits(images: tf.Tensor) -> tf.Tensor:
            found = ready(images)
            self._note()
            return found

        return logits

    # Plain Python, also while a graph is traced.
    @tf.autograph.experimental.do_not_convert
    def _note(self) -> None:
        self._state = ModelState(self._model)

    def trace(self, image_shape: tuple[int, ...]) -> ConcreteFunction:
        """Returns the classifier as a traced function; see `graphs`."""
        traced = traced_classifier(self, image_shape)
        self.traced[image_shape] = traced
        return traced

    def check_unchanged(self) -> None:
        """Refuses a model that would be traced otherwise than it was.

        Cheap where the Python state is as it was; otherwise the model is
        traced again, since not all state matters.

        Raises:
            ValueError: If the model was edited.
        """
        if self._state is None or ModelState(self._model) == self._state:
            return
        for shape, traced in self.traced.items():
            now = None
            with contextlib.suppress(ValueError):
                now = traced_classifier(self._logits, shape)
            if now is None or not is_same(traced, now):
                raise ValueError(
                    "`model` must keep the layers and attributes that it had "
                    "in the certifier's first call, because the certifier "
                    "keeps using the graph traced then: make another "
                    "certifier. Received: a model that was edited since"
                )
        self._note()


def _parts(value: Any) -> list[Any]:
    """Returns what is inside an object that a traced graph may rest on."""
    if isinstance(value, keras.Layer):
        return [*_attributes(value), *_own_classes(value)]
    # A function of arrays is called anew in each pass, not frozen in a graph.
    if isinstance(
        value, (tf.Tensor, tf.Variable, keras.Variable, NumpyClassifier)
    ):
        return []
    if isinstance(value, np.ndarray | np.generic):
        return [_digest(value)] if value.nbytes <= _MOST_BYTES else []
    if isinstance(value, type):
        return _attributes(value) if _is_own(value) else []
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        if len(value) > _MOST_ITEMS:
            return [len(value)]
        items = value.items() if isinstance(value, dict) else ()
        pairs = [part for pair in items for part in pair]
        return [len(value), *(pairs or value)]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if _library_of(value) in _LIBRARIES:
        return []
    if isinstance(value, types.FunctionType):
        return [value.__code__, value.__defaults__, *_reached(value)]
    return [*_attributes(value), *_own_classes(value)]


def _own_classes(value: Any) -> list[type]:
    """Returns the classes of an object that are not a library's.

    What a method reads may be theirs: other methods, class attributes.
    """
    return [home for home in type(value).__mro__ if _is_own(home)]


def _is_own(home: type) -> bool:
    root = home.__module__.partition(".")[0]
    return root not in _LIBRARIES and root != "rs_keras"


def _digest(array: np.ndarray | np.generic) -> bytes:
    """Stands for what an array holds, without keeping it."""
    whole = np.ascontiguousarray(array)
    digest = hashlib.blake2b(f"{whole.dtype}{whole.shape}".encode())
    digest.update(whole.tobytes())
    return digest.digest()


def _attributes(value: Any) -> list[Any]:
    is_layer = isinstance(value, keras.Layer)
    attributes = {
        name: attribute
        for name, attribute in getattr(value, "__dict__", {}).items()
        if not is_bookkeeping(name, is_layer)
    }
    return [" ".join(attributes), *attributes.values()]


def _library_of(value: Any) -> str:
    home = value if isinstance(value, types.FunctionType) else type(value)
    return str(home.__module__).partition(".")[0]


def _reached(function: types.FunctionType) -> Iterator[Any]:
    """Yields what a function takes from around it: closure and globals."""
    yield function.__kwdefaults__
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            yield None
    names = list(_names(function.__code__))
    for name in names:
        value = function.__globals__.get(name)
        if not isinstance(value, types.ModuleType):
            yield value
        elif value.__name__.partition(".")[0] not in _LIBRARIES:
            # Of another module, what the function may read.
            yield from (vars(value).get(other) for other in names)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names(part)
