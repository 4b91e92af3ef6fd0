"""SavedModels that run in a session."""

import gc

import numpy as np
import psutil
import pytest
from kits.tf_serving import save

from rs_keras.serving.server import runtime
from rs_keras.serving.server.grpc_errors import StatusError


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "1"
    save(path)
    return str(path)


@pytest.fixture
def model(export):
    model = runtime.SessionModel(export)
    yield model
    model.close()


def run(model, signature, timeout=None, **inputs):
    signature = model.signatures[signature]
    feeds = {signature.inputs[name].name: inputs[name] for name in inputs}
    aliases = sorted(signature.outputs)
    fetches = [signature.outputs[alias].name for alias in aliases]
    outputs = model.run(feeds, fetches, timeout)
    return dict(zip(aliases, outputs, strict=True))


def test_a_session_runs_a_signature(model):
    x = np.float32([1.0, 2.0])
    assert run(model, "line", x=x)["y"].tolist() == [2.5, 3.0]
    text = run(model, "types", x=np.float32(1.0))["text"]
    assert text.shape == ()
    assert text.tolist() == b"\xff\x00 ends in zero\x00"


WRONG = {
    "dtype": (
        "line",
        {"x": np.float64([1.0])},
        "INVALID_ARGUMENT: Expects arg[0] to be float but double is provided",
    ),
    "dtype of the second": (
        "pair",
        {"a": np.float32([1.0]), "b": np.int32([1])},
        "INVALID_ARGUMENT: Expects arg[1] to be string but int32 is provided",
    ),
    "deadline": (
        "spin",
        {"n": np.int64([10**12]), "timeout": 0.1},
        "DEADLINE_EXCEEDED: Timed out waiting for notification",
    ),
}


@pytest.mark.parametrize(
    "signature, inputs, message", WRONG.values(), ids=WRONG.keys()
)
def test_wrong_inputs_get_tf_servings_status(model, signature, inputs, message):
    with pytest.raises(StatusError) as caught:
        run(model, signature, **inputs)
    assert str(caught.value) == message


def test_tensor_that_does_not_exist(model):
    with pytest.raises(StatusError, match="INVALID_ARGUMENT.*nowhere"):
        model.run({}, ["nowhere:0"])


def test_cancelled_session_answers_cancelled(export):
    model = runtime.SessionModel(export)
    model.cancel()
    with pytest.raises(StatusError, match="CANCELLED: Session has been closed"):
        run(model, "line", x=np.float32([1.0]))
    model.close()


def test_loading_leaves_no_memory(export):
    process = psutil.Process()

    def load(times):
        for _ in range(times):
            runtime.SessionModel(export).close()

    load(10)
    gc.collect()
    before = process.memory_info().rss
    # No collection in between: the cycles of a graph are broken by `close`.
    gc.disable()
    try:
        load(30)
    finally:
        gc.enable()
    assert process.memory_info().rss - before < 6e6
