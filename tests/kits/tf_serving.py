"""Small SavedModels, and requests to a server by the stock stubs."""

import importlib.util
import shutil
import urllib.request
from contextlib import contextmanager

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import get_model_metadata_pb2
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import model_management_pb2
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.apis import prediction_service_pb2_grpc

# Of a server whose metrics are looked at, where waitress is installed.
REST_PORT = 0 if importlib.util.find_spec("waitress") else None
WARMUP = "assets.extra/tf_serving_warmup_requests"


def spec(dtype, *shape, name):
    return tf.TensorSpec(shape, dtype, name)


class Arithmetic(tf.Module):
    """x / 2 + addend, and what else the error table needs."""

    def __init__(self, addend):
        super().__init__()
        self.half = tf.Variable(0.5)
        self.addend = tf.Variable(addend)

    @tf.function(input_signature=[spec(tf.float32, None, name="x")])
    def line(self, x):
        return {"y": x * self.half + self.addend}

    @tf.function(
        input_signature=[
            spec(tf.float32, None, name="a"),
            spec(tf.string, None, name="b"),
        ]
    )
    def pair(self, a, b):
        return {
            "joined": tf.strings.join([tf.strings.as_string(a), b]),
            "same": a,
            "again": a,
        }

    @tf.function(input_signature=[spec(tf.float32, None, 2, 2, name="image")])
    def shaped(self, image):
        return {"sum": tf.reduce_sum(tf.ensure_shape(image, [None, 2, 2]))}

    @tf.function(input_signature=[spec(tf.int64, None, name="n")])
    def spin(self, n):
        last = tf.while_loop(
            lambda i: i < n[0], lambda i: (i + 1,), [tf.zeros([], tf.int64)]
        )
        return {"n": last[0][None]}

    @tf.function(input_signature=[spec(tf.float32, name="x")])
    def types(self, x):
        kinds = (tf.bfloat16, tf.half, tf.float64, tf.int8, tf.uint64, tf.bool)
        cast = {kind.name: tf.cast(x, kind)[None] for kind in kinds}
        return {
            **cast,
            "complex64": tf.complex(x, -x),
            "text": tf.constant(b"\xff\x00 ends in zero\x00"),
            "empty": tf.zeros([0, 3]),
        }

    @tf.function(input_signature=[spec(tf.string, None, name="message")])
    def refuse(self, message):
        check = tf.debugging.Assert(False, [message], summarize=3000)
        with tf.control_dependencies([check]):
            return {"message": tf.identity(message)}


def save(path, addend=2.0):
    module = Arithmetic(addend)
    tf.saved_model.save(
        module,
        str(path),
        signatures={
            "serving_default": module.line,
            "line": module.line,
            "pair": module.pair,
            "shaped": module.shaped,
            "spin": module.spin,
            "types": module.types,
            "refuse": module.refuse,
        },
    )


def copy_version(source, base_path, number):
    """Puts a version in place at once, as a careful exporter does."""
    base_path.mkdir(parents=True, exist_ok=True)
    hidden = base_path / f"tmp.{number}"
    shutil.copytree(source, hidden)
    hidden.rename(base_path / str(number))


def two_versions(path):
    """Writes versions 1 and 3 of one model; returns their folder."""
    save(path / "1")
    copy_version(path / "1", path, 3)
    return path


def write_warmup(version, *records):
    path = version / WARMUP
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


def warmup_record(request):
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.CopyFrom(request)
    return log.SerializeToString()


def predict_request(
    model="m",
    signature="",
    version=None,
    label=None,
    output_filter=(),
    **inputs,
):
    request = predict_pb2.PredictRequest(output_filter=output_filter)
    set_spec(request, model, signature, version, label)
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(to_proto(value))
    return request


def to_proto(value):
    is_proto = hasattr(value, "tensor_shape")
    return value if is_proto else tf.make_tensor_proto(value)


def set_spec(request, model, signature="", version=None, label=None):
    request.model_spec.SetInParent()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    if version is not None:
        request.model_spec.version.value = version
    if label is not None:
        request.model_spec.version_label = label


def status_request(model="m", version=None, label=None):
    request = get_model_status_pb2.GetModelStatusRequest()
    set_spec(request, model, version=version, label=label)
    return request


def metadata_request(*fields, model="m"):
    request = get_model_metadata_pb2.GetModelMetadataRequest(
        metadata_field=fields
    )
    set_spec(request, model)
    return request


def reload_request(*models, metrics=()):
    request = model_management_pb2.ReloadConfigRequest(metric_names=metrics)
    request.config.model_config_list.SetInParent()
    for model in models:
        config = request.config.model_config_list.config.add()
        for field, value in model.items():
            if field == "labels":
                for label, version in value.items():
                    config.version_labels[label] = version
            elif field == "versions":
                config.model_version_policy.specific.versions.extend(value)
            else:
                setattr(config, field, str(value))
    return request


def model(name, base_path, model_platform="tensorflow", **fields):
    return {
        "name": name,
        "base_path": base_path,
        "model_platform": model_platform,
        **fields,
    }


class Wire:
    """Every method of the two services, by name."""

    def __init__(self, channel):
        self.prediction = prediction_service_pb2_grpc.PredictionServiceStub(
            channel
        )
        self.model = model_service_pb2_grpc.ModelServiceStub(channel)
        self.channel = channel

    def call(self, method, request, timeout=30):
        stub = (
            self.prediction if hasattr(self.prediction, method) else self.model
        )
        return getattr(stub, method)(request, timeout=timeout)

    def predict(self, *args, timeout=30, **kwargs):
        request = predict_request(*args, **kwargs)
        return self.prediction.Predict(request, timeout=timeout)

    def line(self, x=2.0, **kwargs):
        response = self.predict(x=np.float32([x]), **kwargs)
        return response.outputs["y"].float_val[0]

    def states(self, model="m"):
        response = self.model.GetModelStatus(status_request(model), timeout=30)
        names = get_model_status_pb2.ModelVersionStatus.State.Name
        return [
            (entry.version, names(entry.state))
            for entry in response.model_version_status
        ]


@contextmanager
def connect(server, **options):
    address = server if isinstance(server, str) else server.address
    options = [(f"grpc.{name}", value) for name, value in options.items()]
    with grpc.insecure_channel(address, options) as channel:
        yield Wire(channel)


def metrics_of(server):
    """What Prometheus would read."""
    if server.rest_address is None:
        pytest.skip("waitress is not installed")
    url = f"http://{server.rest_address}/monitoring/prometheus/metrics"
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read().decode()


@contextmanager
def fails(code, message=None):
    """Checks the status that a call inside the block ends with."""
    caught = []
    try:
        yield caught
    except grpc.RpcError as error:
        assert error.code() is getattr(grpc.StatusCode, code), error.details()
        if message is not None:
            assert error.details() == message
        caught.append(error)
    else:
        raise AssertionError(f"the call succeeded; {code} was expected")
