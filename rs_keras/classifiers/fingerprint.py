"""Fingerprints: a hash of a model's weights, which says which model it is."""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from rs_keras import _compat
from rs_keras.classifiers.adapters import networks_of


def fingerprint(model: Any) -> str | None:
    """Returns a hash of a model's weights: which classifier it is.

    Of a Keras model also of the plain numbers in its layers, such as those of
    a normalisation; not of its other variables: the states of random seeds and
    metrics are others at each load. What else its layers do is not seen.

    Args:
        model: A Keras model, a loaded SavedModel or any callable; or one that
            is served elsewhere and tells its `fingerprint`.

    Returns:
        32 hexadecimal digits, or None where no weights can be found.
    """
    known = getattr(model, "fingerprint", None)
    if isinstance(known, str):
        return known
    variables = _weights(model)
    if not variables:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for variable in variables:
        array = np.ascontiguousarray(variable.numpy())
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    for number in _plain_numbers(model):
        digest.update(number.encode())
    return digest.hexdigest()


def _weights(model: Any) -> list[Any]:
    if isinstance(model, keras.Layer):
        return model.weights
    parts = getattr(model, "parts", None)
    if isinstance(parts, tuple):
        return [weight for part in parts for weight in _weights(part)]
    return list(getattr(model, "variables", None) or ())


def _plain_numbers(model: Any) -> Iterator[str]:
    """Yields the fractions in the configurations of a Keras model's layers.

    Sizes show in the weights' shapes, zeros are what is not set, and releases
    of Keras differ in names and flags.
    """
    scaling = keras.layers.Rescaling, keras.layers.Normalization
    for network in networks_of(model):
        for place, layer in enumerate(_compat.flat_layers(network)):
            if isinstance(layer, keras.Model):
                continue
            kinds = (float, int) if isinstance(layer, scaling) else (float,)
            for key, value in _config_of(layer):
                numbers = np.ravel(value).tolist() if _is_numbers(value) else []
                if any(isinstance(x, kinds) and x for x in numbers):
                    yield f"{place} {key} {[float(x) for x in numbers]}"


def _config_of(layer: keras.Layer) -> list[tuple[str, Any]]:
    # Others' code, which may fail in any way: a model need not be one that can
    # be saved.
    with contextlib.suppress(Exception):
        return sorted(layer.get_config().items(), key=lambda item: str(item[0]))
    return []


def _is_numbers(value: Any) -> bool:
    with contextlib.suppress(ValueError, TypeError, NotImplementedError):
        return np.asarray(value).dtype.kind in "if"
    return False
