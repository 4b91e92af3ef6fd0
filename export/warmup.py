"""Requests that make a server ready before the first client comes.

TensorFlow optimises and plans a signature when it first runs: tenths of a
second. TF Serving runs these requests when it loads a version, and does not
serve a version that fails one. They cost it next to nothing: rows without an
image draw nothing, and those with one draw one pass.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from rs_keras.certification.sampling import Sampler
from rs_keras.export import signature
from rs_keras.export.settings import Settings

FILE = "assets.extra/tf_serving_warmup_requests"


class Request(NamedTuple):
    """Arrays for one signature."""

    signature_name: str
    inputs: dict[str, np.ndarray]


def an_image(sampler: Sampler) -> np.ndarray:
    """Returns one image of random pixels, always the same, on the grid."""
    levels = np.random.default_rng(0).integers(0, 256, sampler.image_shape)
    return (levels.astype(np.float32) / np.float32(255))[None]


def requests(sampler: Sampler, settings: Settings) -> list[Request]:
    """Returns a request for each signature, of one row."""
    image = an_image(sampler)
    nothing = np.full_like(image, np.nan)
    one_pass = np.array([min(sampler.batch_size, settings.max_n)])
    seed = np.array([[1, 2]])
    one = np.array([1])
    alpha = np.array([settings.alpha])
    inputs = {
        signature.DEFAULT: {"images": nothing},
        signature.PREDICT: {"images": nothing},
        signature.CERTIFY: {"images": nothing},
        signature.CERTIFY_WITH: {
            "images": image,
            "seed": seed,
            "n0": one,
            "n": one_pass,
            "alpha": alpha,
        },
        signature.DECIDE: {"images": nothing, "radius": np.array([0.0])},
        signature.SAMPLE: {
            "images": image,
            "seed": seed,
            "first": np.array([0]),
            "n": one_pass,
        },
        signature.BOUND: {
            "k": np.array([90]),
            "k2": np.array([10]),
            "n": np.array([100]),
            "alpha": alpha,
        },
        signature.DESCRIBE: {"query": np.array([0])},
    }
    if settings.image_bytes:
        empty = np.array([b""], object)
        inputs[signature.PREDICT_BYTES] = {"image_bytes": empty}
        inputs[signature.CERTIFY_BYTES] = {"image_bytes": empty}
    return [Request(name, arrays) for name, arrays in inputs.items()]


def write(version: str | Path, wanted: Iterable[Request]) -> None:
    """Writes requests as TF Serving reads them: PredictionLogs, TFRecord."""
    path = Path(version) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as file:
        for request in wanted:
            log = prediction_log_pb2.PredictionLog()
            record = log.predict_log.request
            record.model_spec.signature_name = request.signature_name
            for name, array in request.inputs.items():
                record.inputs[name].CopyFrom(tf.make_tensor_proto(array))
            file.write(log.SerializeToString())
