"""Runs a new export as a server will, before it gets its name.

TF Serving runs graphs in a session. `tf.saved_model.load` is another runtime
and would not do: it runs exports that no server can run.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tensorflow as tf

from rs_keras import _compat
from rs_keras.export.warmup import Request

_TAG = "serve"

# Two runtimes may add up in another order and decide a near tie otherwise; a
# graph with other weights differs in far more votes.
_VOTES_MOVED = 0.02


def rehearse(
    version: str | Path, requests: Iterable[Request]
) -> dict[str, dict[str, np.ndarray]]:
    """Loads an export into a session and runs each request.

    Returns:
        The outputs of each signature, by name.

    Raises:
        ValueError: If it does not load or a signature does not run.
    """
    answers = {}
    name = "(loading)"
    graph = tf.Graph()
    new_session = tf.compat.v1.Session(graph=graph)
    with _compat.log_errors_only(), new_session as session:
        try:
            loaded = tf.compat.v1.saved_model.load(
                session, [_TAG], str(version)
            )
            for name, inputs in requests:
                signature = loaded.signature_def[name]
                answers[name] = session.run(
                    {k: v.name for k, v in signature.outputs.items()},
                    {signature.inputs[k].name: v for k, v in inputs.items()},
                )
        except tf.errors.OpError as error:
            message = error.message.removeprefix("Graph execution error:\n\n")
            raise ValueError(
                "`certifier` must run in a TensorFlow session, as in TF "
                f"Serving. Its export fails in {name!r}: {message}"
            ) from error
    return answers


def check_counts(served: np.ndarray, in_process: np.ndarray) -> None:
    """Compares votes of the same draws in the two runtimes.

    Raises:
        ValueError: If more than a few differ.
    """
    moved = np.abs(served - in_process).sum() / 2
    if moved > 1 + _VOTES_MOVED * in_process.sum():
        raise ValueError(
            "`certifier` must count alike in a TensorFlow session. Received: "
            f"votes {served.tolist()} there, {in_process.tolist()} here"
        )
