"""The warm-up file, as a server's reader takes it, and what it costs."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from kits import session_capi
from tensorflow_serving.apis import prediction_log_pb2

from rs_keras import Certifier
from rs_keras.export import export_certifier

PASS = 16
# TF Serving refuses a file with more.
MOST_RECORDS = 1000


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((4, 4, 3)),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    return export_certifier(
        # Nothing of a warm-up may draw as many as these.
        Certifier(model, batch_size=PASS, noise="grid"),
        tmp_path_factory.mktemp("exports"),
        n=1_000_000,
        predict_n=1_000_000,
        image_bytes=True,
    )


@pytest.fixture(scope="module")
def requests(version):
    path = version / "assets.extra" / "tf_serving_warmup_requests"
    found = []
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        log = prediction_log_pb2.PredictionLog.FromString(record)
        assert log.WhichOneof("log_type") == "predict_log"
        found.append(log.predict_log.request)
    return found


def test_every_signature_is_warmed_up_once(requests, version):
    names = [request.model_spec.signature_name for request in requests]
    stored = set(session_capi.signature_defs(version))
    assert sorted(names) == sorted(stored - {"__saved_model_init_op"})
    assert len(names) <= MOST_RECORDS


def test_a_request_fits_its_signature(requests, version):
    stored = session_capi.signature_defs(version)
    for request in requests:
        wanted = stored[request.model_spec.signature_name].inputs
        assert sorted(request.inputs) == sorted(wanted)
        for name, tensor in request.inputs.items():
            assert tensor.dtype == wanted[name].dtype
            sizes = [d.size for d in tensor.tensor_shape.dim]
            full = [d.size for d in wanted[name].tensor_shape.dim]
            # A server may put requests together: never without a row.
            assert sizes == [1, *full[1:]]


def test_they_run_and_draw_next_to_nothing(requests, version, tmp_path):
    calls = []
    for request in requests:
        inputs = {
            name: tf.make_ndarray(tensor)
            for name, tensor in request.inputs.items()
        }
        for name, array in inputs.items():
            if array.dtype == object:
                inputs[name] = array.astype("S")
        calls.append((version, request.model_spec.signature_name, inputs))
    answers, _ = session_capi.run(tmp_path, calls)
    drawn = {
        name: int(answer["n"][0])
        for (_, name, _), answer in zip(calls, answers, strict=True)
        if "n" in answer
    }
    assert drawn == {
        "serving_default": 0,
        "predict": 0,
        "certify": 0,
        # One pass: the network runs, too.
        "certify_with": PASS,
        "decide": 0,
        "sample": PASS,
        "predict_bytes": 0,
        "certify_bytes": 0,
    }
    certified = answers[[name for _, name, _ in calls].index("certify_with")]
    assert np.sum(certified["selection_counts"]) == 1
