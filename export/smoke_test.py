"""The smoke test of a new export, and its warm-up requests.

TensorFlow optimises a signature when it first runs, which takes tenths of a
second. TF Serving runs an export's warm-up requests when it loads a version,
and does not serve a version on which one fails. They are cheap: rows without an
image draw nothing, and the others draw one pass.

The test runs the graphs in a session, as TF Serving does: `tf.saved_model.load`
would run exports that no server can run.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from rs_keras import _compat
from rs_keras.certification.sampling import Sampler
from rs_keras.export import signature
from rs_keras.export.settings import Settings

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"

_TAG = "serve"

# Two runtimes may sum in a different order and decide near ties differently; a
# graph with other weights differs in far more votes.
_VOTES_MOVED = 0.02

# Arrays by the names of a signature's inputs or outputs.
Arrays = dict[str, np.ndarray]


def smoke_requests(sampler: Sampler, settings: Settings) -> dict[str, Arrays]:
    """Returns a request of one row for each signature, by its name."""
    # Random pixels on the grid of 1/255, always the same.
    levels = np.random.default_rng(0).integers(0, 256, sampler.image_shape)
    image = (levels.astype(np.float32) / np.float32(255))[None]
    no_image = np.full_like(image, np.nan)
    drawn = {
        "images": image,
        "seed": np.array([[1, 2]]),
        "n": np.array([min(sampler.batch_size, settings.max_n)]),
    }
    alpha = np.array([settings.alpha])
    votes = {"k": np.array([90]), "k2": np.array([10]), "n": np.array([100])}
    requests = {
        signature.DEFAULT: {"images": no_image},
        signature.PREDICT: {"images": no_image},
        signature.CERTIFY: {"images": no_image},
        signature.CERTIFY_WITH: {**drawn, "n0": np.array([1]), "alpha": alpha},
        signature.DECIDE: {"images": no_image, "radius": np.array([0.0])},
        signature.SAMPLE: {**drawn, "first": np.array([0])},
        signature.BOUND: {**votes, "alpha": alpha},
        signature.DESCRIBE: {"query": np.array([0])},
        signature.LOGITS: {"images": image},
        signature.PREPARE: {"images": no_image},
    }
    if settings.image_bytes:
        no_file = {"image_bytes": np.array([b""], object)}
        requests[signature.PREDICT_BYTES] = no_file
        requests[signature.CERTIFY_BYTES] = no_file
        requests[signature.PREPARE_BYTES] = no_file
    return requests


def write_warmup(version: Path, requests: Mapping[str, Arrays]) -> None:
    """Writes the warm-up file of TF Serving: PredictionLogs in a TFRecord."""
    path = version / WARMUP_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as file:
        for name, inputs in requests.items():
            log = prediction_log_pb2.PredictionLog()
            request = log.predict_log.request
            request.model_spec.signature_name = name
            for key, array in inputs.items():
                request.inputs[key].CopyFrom(tf.make_tensor_proto(array))
            file.write(log.SerializeToString())


def run_requests(
    version: Path, requests: Mapping[str, Arrays]
) -> dict[str, Arrays]:
    """Loads an export into a session and runs each request.

    Returns:
        The outputs of each signature, by name.

    Raises:
        ValueError: If the export does not load or a signature fails.
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
            for name, inputs in requests.items():
                stored = loaded.signature_def[name]
                answers[name] = session.run(
                    {k: v.name for k, v in stored.outputs.items()},
                    {stored.inputs[k].name: v for k, v in inputs.items()},
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
            "`certifier` must count the same votes in a TensorFlow session as "
            f"in this process. Received: {served.tolist()} in a session, "
            f"{in_process.tolist()} in this process"
        )
