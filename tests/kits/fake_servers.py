"""Servers without TensorFlow, whose votes anyone can count, and that fail."""

import json
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import numpy as np
import scipy.stats
import tensorflow as tf
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis import prediction_service_pb2_grpc

from rs_keras.export import metadata

SHAPE = (4, 4, 1)
CLASSES = 3
METADATA = {
    "format": 3,
    "total_variation": 0.0,
    "library": "rs-keras 0",
    "tensorflow": "0",
    "sigma": 0.5,
    "noise": "float",
    "dtype": "float32",
    "bound": "clopper_pearson",
    "num_classes": CLASSES,
    "image": {"shape": list(SHAPE), "dtype": "float32", "range": [0, 1]},
    "max_radius": 1.0,
    "decide_max_radius": 1.0,
    "signatures": ["certify", "predict", "sample"],
    "fingerprint": "f" * 32,
    "classifier_sha256": "0" * 64,
    "n0": 100,
    "n": 1000,
    "alpha": 0.001,
    "predict_n": 100,
    "max_n": 10_000,
    "decide_n": 10_000,
    "runner_up": True,
    "class_names": None,
    "image_bytes": False,
    "seed": "fresh",
    "guarantee": "none",
}


# Added to the version where its number was given to an export of another sigma.
ANEW = 10


def votes(seed, first, n, version=1):
    """How draws first .. first+n-1 under this seed vote: a plain loop's sum."""
    draws = np.arange(first, first + n, dtype=np.uint64)
    mixed = (draws * np.uint64(2654435761 + 2 * version)) >> np.uint64(7)
    mixed += np.uint64(int(seed[0]) % 1000)
    # Class 0 gets about 4 of 5, so that certificates are not all abstentions.
    return np.bincount(
        np.minimum(mixed % np.uint64(10), 9) // np.uint64(8)
        + (mixed % np.uint64(10) == np.uint64(9)),
        minlength=CLASSES,
    )


def certificate(selection, counts, alpha=0.001, sigma=0.5):
    """(label, radius, p_lower) of the votes for two classes, by SciPy."""
    label, n = int(np.argmax(selection)), 1_000
    k, k2 = counts[label], max(np.delete(counts, label))
    lower = scipy.stats.beta.ppf(0.9 * alpha, k, n - k + 1)
    upper = scipy.stats.beta.ppf(1 - 0.1 * alpha, k2 + 1, n - k2)
    upper = min(upper, 1 - lower)
    icdf = scipy.stats.norm.ppf
    if lower <= upper:
        return -1, 0.0, lower
    return label, sigma / 2 * (icdf(lower) - icdf(upper)), lower


class Fake(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    """Serves `versions` of the model "m".

    Attributes:
        faults: What `sample` requests meet before they are answered, one a
            request: (code, details), or a number of seconds to be slow.
        always: A fault that all of them meet.
        spoil: Changes the outputs of `sample`.
        asked: Signatures, in the order of requests.
        drawn: (first, n) of all rows that were answered.
        before_sample: Called at each `sample` request.
        arrived: (seed, first, n) of each row of `sample`, answered or not.
        most: Requests at a time; one more is turned away. None for any.
        token: What requests must carry; None for nothing.
        tokens: What they carried.
    """

    def __init__(self, host="127.0.0.1", port=0, credentials=None, **changes):
        self.metadata = {**METADATA, **changes}
        self.versions = {1: {}}
        self.states = {}
        self.faults = deque()
        self.always = None
        self.spoil = None
        self.status_fault = None
        self.asked = []
        self.drawn = []
        self.before_sample = lambda n: None
        self.pace = 0.0
        self.arrived = []
        self.most = None
        self.token = None
        self.tokens = []
        self._running = 0
        self._thawed = threading.Event()
        self._thawed.set()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(16)
        self._server = grpc.server(
            self._pool, options=[("grpc.so_reuseport", 0)]
        )
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            self, self._server
        )
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(
            self, self._server
        )
        target = f"{host}:{port}"
        if credentials is None:
            bound = self._server.add_insecure_port(target)
        else:
            bound = self._server.add_secure_port(target, credentials)
        self.port = bound
        self.address = f"{host}:{bound}"
        self._server.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()

    def freeze(self):
        """From now on, requests arrive and are not answered."""
        self._thawed.clear()

    def thaw(self):
        self._thawed.set()

    def stop(self):
        self._thawed.set()
        self._server.stop(0).wait()
        self._pool.shutdown(wait=False)

    @property
    def samples(self):
        return self.asked.count("sample")

    def GetModelStatus(self, request, context):
        self._thawed.wait()
        self._authorize(context)
        if self.status_fault is not None:
            context.abort(*self.status_fault)
        if request.model_spec.name != "m":
            context.abort(
                grpc.StatusCode.NOT_FOUND,
                "Could not find any versions of model "
                f"{request.model_spec.name}",
            )
        response = get_model_status_pb2.GetModelStatusResponse()
        available = get_model_status_pb2.ModelVersionStatus.AVAILABLE
        for version in sorted(self.versions, reverse=True):
            response.model_version_status.add(
                version=version, state=self.states.get(version, available)
            )
        return response

    def Predict(self, request, context):
        spec = request.model_spec
        version = spec.version.value
        with self._lock:
            self.asked.append(spec.signature_name)
        if spec.signature_name == "sample":
            self._arrive(request)
        self._thawed.wait()
        self._authorize(context)
        if version not in self.versions:
            self._gone(version, context)
        inputs = {
            name: tf.make_ndarray(proto)
            for name, proto in request.inputs.items()
        }
        response = predict_pb2.PredictResponse()
        response.model_spec.CopyFrom(spec)
        with self._admitted(context):
            answer = getattr(self, spec.signature_name)
            outputs = answer(inputs, version, context)
        rows = len(next(iter(outputs.values())))
        facts = {**self.metadata, **self.versions.get(version, {})}
        if spec.signature_name != "describe":
            outputs["export"] = np.full(rows, metadata.identity(facts))
        for name, array in outputs.items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(array))
        if self.spoil is not None and spec.signature_name == "sample":
            self.spoil(response)
        return response

    def _arrive(self, request):
        seed, first, n = (
            tf.make_ndarray(request.inputs[name]).tolist()
            for name in ("seed", "first", "n")
        )
        self.arrived += zip(map(tuple, seed), first, n, strict=True)

    @contextmanager
    def _admitted(self, context):
        with self._lock:
            room = self.most is None or self._running < self.most
            self._running += room
        if not room:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "Server Threadpool Exhausted",
            )
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    def _authorize(self, context):
        carried = dict(context.invocation_metadata()).get("authorization")
        self.tokens.append(carried)
        if self.token is not None and carried != f"Bearer {self.token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you")

    def describe(self, inputs, version, context):
        facts = {**self.metadata, **self.versions[version]}
        return {"metadata_json": np.array([json.dumps(facts).encode()])}

    def sample(self, inputs, version, context):
        self.before_sample(int(inputs["n"].sum()))
        self._fail(context)
        time.sleep(self.pace * float(inputs["n"].sum()))
        if version not in self.versions:
            self._gone(version, context)
        rows = list(zip(inputs["first"].tolist(), inputs["n"], strict=True))
        with self._lock:
            self.drawn += rows
        facts = self.versions[version]
        # The votes of another sigma under the same number are others.
        kind = version + ANEW * (facts.get("sigma", 0.5) != 0.5)
        counts = [
            votes(seed, first, n, kind)
            for seed, (first, n) in zip(inputs["seed"], rows, strict=True)
        ]
        return {"counts": np.int64(counts), "n": inputs["n"]}

    def certify(self, inputs, version, context):
        self._fail(context)
        seeds, facts = self._seeds(inputs), self.versions[version]
        selection = np.stack([votes(seed, 0, 100, version) for seed in seeds])
        counts = np.stack([votes(seed, 100, 1_000, version) for seed in seeds])
        sigma = facts.get("sigma", self.metadata["sigma"])
        found = [
            certificate(*pair, sigma=sigma)
            for pair in zip(selection, counts, strict=True)
        ]
        label, radius, p_lower = map(np.array, zip(*found, strict=True))
        return {
            "label": label,
            "radius": radius,
            "p_lower": p_lower,
            "counts": counts,
            "selection_counts": selection,
            "n": np.full(len(seeds), 1_000),
            "seed": seeds,
        }

    def predict(self, inputs, version, context):
        self._fail(context)
        seeds = self._seeds(inputs)
        counts = np.stack([votes(seed, 0, 100, version) for seed in seeds])
        top = np.sort(counts, -1)[:, :-3:-1]
        tests = [
            scipy.stats.binomtest(k, k + k2).pvalue for k, k2 in top.tolist()
        ]
        return {
            "label": np.where(np.array(tests) <= 0.001, counts.argmax(-1), -1),
            "counts": counts,
            "p_value": np.array(tests),
            "n": np.full(len(seeds), 100),
            "seed": seeds,
        }

    def _seeds(self, inputs):
        """Of the server's: fresh ones, or such that equal images share them."""
        if self.metadata["seed"] == "fresh":
            rows = len(inputs["images"])
            return np.random.default_rng().integers(0, 2**62, [rows, 2])
        sums = [int(image.sum() * 255) for image in inputs["images"]]
        return np.int64([[number, -number] for number in sums])

    def _gone(self, version, context):
        context.abort(
            grpc.StatusCode.NOT_FOUND,
            f"Servable not found for request: Specific(m, {version})",
        )

    def _fail(self, context):
        with self._lock:
            fault = self.faults.popleft() if self.faults else self.always
        if isinstance(fault, tuple):
            context.abort(*fault)
        elif fault is not None:
            time.sleep(fault)
