"""Runs an export's warm-up requests before it serves, as TF Serving does.

The requests are in `assets.extra/tf_serving_warmup_requests`, a TFRecord file
of `PredictionLog`s. If one fails, the version fails to load.
"""

import logging
import re
from collections.abc import Iterator

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import prediction_log_pb2

from rs_keras.export.smoke_test import WARMUP_FILE
from rs_keras.serving.event_log import event
from rs_keras.serving.server.grpc_errors import StatusError
from rs_keras.serving.server.grpc_errors import from_tensorflow
from rs_keras.serving.server.grpc_errors import invalid
from rs_keras.serving.server.predict import read_request
from rs_keras.serving.server.runtime import SessionModel

_MOST_RECORDS = 1000
# Text that eager execution adds to error messages.
_EAGER = re.compile(r"^\{\{.*?\}\} | \[Op:\w+\].*$", re.DOTALL)
# TF Serving runs these; this server does not answer them, so there is nothing
# to warm up.
_SKIPPED = ("classify_log", "regress_log", "multi_inference_log")


def warm_up(model: SessionModel, directory: str) -> int:
    """Runs every recorded request once.

    Args:
        model: The version just loaded.
        directory: Its SavedModel; without the file there is nothing to do.

    Returns:
        The number of requests run.

    Raises:
        StatusError: If a record cannot be read, cannot be run, fails, or is
            the 1001st.
    """
    path = tf.io.gfile.join(directory, WARMUP_FILE)
    if not tf.io.gfile.exists(path):
        return 0
    count = 0
    for number, record in enumerate(_records(path), start=1):
        if number > _MOST_RECORDS:
            raise invalid(
                "Number of warmup records exceeds the maximum "
                f"({_MOST_RECORDS}) at {path}"
            )
        count += _run(model, record, path)
    return count


def _records(path: str) -> Iterator[bytes]:
    try:
        yield from tf.data.TFRecordDataset(path).as_numpy_iterator()
    except tf.errors.OpError as error:
        status = from_tensorflow(error)
        message = _EAGER.sub("", status.message)
        if status.code.name == "DATA_LOSS":
            message += ". Please verify your warmup data is in TFRecord format."
        raise StatusError(status.code.name, message) from error


def _run(model: SessionModel, record: bytes, path: str) -> int:
    """Runs a record; returns how many requests that were, 1 or 0."""
    try:
        log = prediction_log_pb2.PredictionLog.FromString(record)
    except DecodeError as error:
        raise invalid(
            f"Failed to parse warmup record: {record!r} from {path}"
        ) from error
    kind = log.WhichOneof("log_type")
    if kind in _SKIPPED:
        event(logging.WARNING, "warmup_record_skipped", kind=kind, path=path)
        return 0
    if kind != "predict_log":
        number = log.DESCRIPTOR.fields_by_name[kind].number if kind else 0
        raise StatusError(
            "UNIMPLEMENTED", f"Unsupported log_type for warmup: {number}"
        )
    call = read_request(model, log.predict_log.request)
    model.call(call.signature_name, call.inputs, call.outputs)
    return 1
