"""Versions, labels, policies, reloads and warm-up, through the wire.

The cases are those of tensorflow/serving: server_core_test,
saved_model_warmup_util_test and tensorflow_model_server_test.
"""

import shutil
import time

import grpc
import keras
import numpy as np
import pytest
import tensorflow as tf
from kits.tf_serving import REST_PORT
from kits.tf_serving import connect
from kits.tf_serving import copy_version
from kits.tf_serving import fails
from kits.tf_serving import metadata_request
from kits.tf_serving import metrics_of
from kits.tf_serving import model
from kits.tf_serving import predict_request
from kits.tf_serving import reload_request
from kits.tf_serving import save
from kits.tf_serving import status_request
from kits.tf_serving import warmup_record
from kits.tf_serving import write_warmup
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
from tensorflow_serving.apis import get_model_metadata_pb2
from tensorflow_serving.apis import prediction_log_pb2

from rs_keras.serving import EmbeddedServer
from rs_keras.serving.server.manager import ModelManager

X = np.float32([2.0])


@pytest.fixture(scope="module")
def plus_two(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "plus_two"
    save(path, addend=2.0)
    return path


@pytest.fixture(scope="module")
def plus_three(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "plus_three"
    save(path, addend=3.0)
    return path


@pytest.fixture
def base_path(tmp_path, plus_two):
    copy_version(plus_two, tmp_path / "m", 1)
    return tmp_path / "m"


def serve(export_dir=None, **options):
    if export_dir is not None:
        options.setdefault("model_name", "m")
    options.setdefault("poll_seconds", 0.05)
    options.setdefault("allow_reload", True)
    return EmbeddedServer(export_dir, port=0, **options)


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def wait_for_work():
    """Until the server, which is in this process, is busy with a request."""
    begun = time.process_time()
    wait_for(lambda: time.process_time() > begun + 0.3)


# -- versions on the disk ---------------------------------------------------


def test_new_version_takes_over(base_path, plus_three):
    with serve(base_path) as server, connect(server) as wire:
        assert wire.line() == 3.0
        copy_version(plus_three, base_path, 2)
        wait_for(lambda: wire.line() == 4.0)
        wait_for(lambda: wire.states() == [(2, "AVAILABLE"), (1, "END")])
        with fails(
            "NOT_FOUND", "Servable not found for request: Specific(m, 1)"
        ):
            wire.predict(version=1, x=X)


def test_no_request_fails_while_versions_change(base_path, plus_three):
    with serve(base_path) as server, connect(server) as wire:
        answers = set()

        def latest():
            answers.add(wire.line())
            return wire.states()[0]

        copy_version(plus_three, base_path, 2)
        wait_for(lambda: latest() == (2, "AVAILABLE"))
        copy_version(plus_three, base_path, 3)
        wait_for(lambda: latest() == (3, "AVAILABLE"))
        assert answers == {3.0, 4.0}


def test_broken_version_leaves_the_old_one(base_path, plus_two):
    with serve(base_path) as server, connect(server) as wire:
        (base_path / "2").mkdir()
        wait_for(lambda: wire.states()[0] == (2, "LOADING"))
        assert wire.line() == 3.0
        assert wire.states()[1] == (1, "AVAILABLE")
        # It was copied in slowly; the retry is a minute away, so a later
        # version mends it now.
        copy_version(plus_two, base_path, 3)
        wait_for(
            lambda: wire.states() == [(3, "AVAILABLE"), (2, "END"), (1, "END")]
        )


def test_slowly_copied_version_is_tried_again(base_path, plus_three):
    server = serve(base_path, load_retry_seconds=0.1)
    with server, connect(server) as wire:
        (base_path / "2").mkdir()
        wait_for(lambda: wire.states()[0] == (2, "LOADING"))
        shutil.copytree(plus_three, base_path / "2", dirs_exist_ok=True)
        wait_for(lambda: wire.states()[0] == (2, "AVAILABLE"))
        assert wire.line() == 4.0


def test_version_that_never_loads_ends_with_its_error(base_path):
    server = serve(base_path, load_retry_seconds=0.0)
    with server, connect(server) as wire:
        (base_path / "2").mkdir()
        wait_for(lambda: wire.states()[0] == (2, "END"))
        response = wire.call("GetModelStatus", status_request())
        status = response.model_version_status[0].status
        assert status.error_code == grpc.StatusCode.NOT_FOUND.value[0]
        assert status.error_message == (
            "Could not find SavedModel .pb or .pbtxt at supplied export "
            f"directory path: {base_path}/2. Check that the directory exists "
            "and that you have the right permissions for accessing it."
        )


def test_polling_goes_on_after_an_error(base_path, monkeypatch, caplog):
    calls = []

    def fail(manager):
        calls.append(1)
        raise ValueError("once more")

    monkeypatch.setattr(ModelManager, "poll", fail)
    with serve(base_path, poll_seconds=0.01):
        wait_for(lambda: len(calls) >= 3)
    count = len(calls)
    assert "versions failed" in caplog.text
    time.sleep(0.05)
    assert len(calls) == count


def test_lost_base_path_leaves_what_serves(base_path):
    with serve(base_path) as server, connect(server) as wire:
        base_path.rename(base_path.with_name("away"))
        time.sleep(0.2)
        assert wire.line() == 3.0


def test_all_versions_gone(base_path):
    with serve(base_path) as server, connect(server) as wire:
        shutil.rmtree(base_path / "1")
        wait_for(lambda: wire.states() == [(1, "END")])
        with fails("NOT_FOUND", "Servable not found for request: Latest(m)"):
            wire.predict(x=X)


def test_without_polling_no_new_version_is_found(base_path, plus_three):
    with serve(base_path, poll_seconds=0) as server, connect(server) as wire:
        copy_version(plus_three, base_path, 2)
        time.sleep(0.3)
        assert wire.states() == [(1, "AVAILABLE")]


@pytest.mark.parametrize(
    "versions, expected",
    [
        ("latest", [123]),
        (2, [123, 2]),
        ([1, 2], [2, 1]),
        ("all", [123, 2, 1]),
    ],
    ids=["latest", "two latest", "specific", "all"],
)
def test_version_policies(base_path, plus_two, versions, expected):
    copy_version(plus_two, base_path, 2)
    copy_version(plus_two, base_path, "00000123")
    for ignored in ("tmp.9", "v7", "8a", "-4", "9" * 30):
        (base_path / ignored).mkdir()
    with serve(base_path, versions=versions, poll_seconds=0) as server:
        assert server.models == {"m": expected}


def test_running_request_keeps_its_version(base_path, plus_three):
    with serve(base_path) as server, connect(server) as wire:
        running = wire.prediction.Predict.future(
            predict_request(signature="spin", n=np.int64([10**12])), timeout=2
        )
        wait_for_work()
        copy_version(plus_three, base_path, 2)
        wait_for(lambda: wire.states()[0] == (2, "AVAILABLE"))
        # The old version lives as long as its request, and takes no other.
        wait_for(lambda: wire.states()[1] == (1, "UNLOADING"))
        assert wire.line() == 4.0
        assert running.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        wait_for(lambda: wire.states()[1] == (1, "END"))


def test_model_comes_back_before_its_last_request_has_left(base_path):
    with serve(base_path) as server, connect(server) as wire:
        running = wire.prediction.Predict.future(
            predict_request(signature="spin", n=np.int64([10**12])), timeout=60
        )
        wait_for_work()
        wire.call("HandleReloadConfigRequest", reload_request())
        assert wire.states() == [(1, "UNLOADING")]
        wire.call(
            "HandleReloadConfigRequest", reload_request(model("m", base_path))
        )
        assert wire.states() == [(1, "AVAILABLE")]
        assert wire.line() == 3.0
        assert not running.done()
        server.stop(0)
        assert running.code() is grpc.StatusCode.UNAVAILABLE


# -- labels ------------------------------------------------------------------


@pytest.fixture
def two_versions(base_path, plus_three):
    copy_version(plus_three, base_path, 2)
    return base_path


def relabel(wire, base_path, versions=(1, 2), **labels):
    wire.call(
        "HandleReloadConfigRequest",
        reload_request(model("m", base_path, versions=versions, labels=labels)),
    )


def test_labels_are_moved_between_versions(two_versions):
    labels = {"stable": 1, "canary": 2}
    with (
        serve(two_versions, versions="all", labels=labels) as server,
        connect(server) as wire,
    ):
        assert wire.line(label="stable") == 3.0
        assert wire.line(label="canary") == 4.0
        relabel(wire, two_versions, stable=2)
        assert wire.line(label="stable") == 4.0
        with fails(
            "INVALID_ARGUMENT", "Unrecognized servable version label: canary"
        ):
            wire.line(label="canary")
        with fails(
            "FAILED_PRECONDITION",
            "Request to assign label to version 3 of model m, which is not "
            "currently available for inference",
        ):
            relabel(wire, two_versions, stable=3)
        assert wire.line(label="stable") == 4.0


def test_label_of_a_version_that_serves_later(two_versions, plus_two):
    with (
        serve(
            two_versions, versions="all", allow_unavailable_labels=True
        ) as server,
        connect(server) as wire,
    ):
        relabel(wire, two_versions, (1, 2, 3), canary=3)
        with fails(
            "NOT_FOUND", "Servable not found for request: Specific(m, 3)"
        ):
            wire.line(label="canary")
        copy_version(plus_two, two_versions, 3)
        wait_for(lambda: wire.states()[0] == (3, "AVAILABLE"))
        assert wire.line(label="canary") == 3.0
        # An existing label may not move to a version that does not serve.
        with fails("FAILED_PRECONDITION"):
            relabel(wire, two_versions, (1, 2, 3), canary=9)


def test_label_at_start_must_name_a_served_version(base_path):
    with pytest.raises(ValueError, match=r"served \(\[1\]\).*'stable': 2"):
        serve(base_path, labels={"stable": 2}).start()


# -- reloads -----------------------------------------------------------------


def test_reload_adds_drops_and_brings_back(tmp_path, base_path, plus_three):
    other = tmp_path / "other"
    copy_version(plus_three, other, 5)
    with serve(base_path) as server, connect(server) as wire:
        response = wire.call(
            "HandleReloadConfigRequest",
            reload_request(
                model("m", base_path),
                model("other", other),
                metrics=["/tensorflow/cc/saved_model/load_attempt_count", "x"],
            ),
        )
        assert response.status.error_code == 0
        increases = {
            metric.name: metric.int64_value_increase
            for metric in response.metric
        }
        assert increases == {
            "/tensorflow/cc/saved_model/load_attempt_count": 1,
            "x": 0,
        }
        assert wire.line(model="other") == 4.0
        assert wire.line() == 3.0

        wire.call(
            "HandleReloadConfigRequest", reload_request(model("other", other))
        )
        with fails("NOT_FOUND", "Servable not found for request: Latest(m)"):
            wire.line()
        assert wire.states("m") == [(1, "END")]

        wire.call(
            "HandleReloadConfigRequest", reload_request(model("m", base_path))
        )
        assert wire.line() == 3.0
        assert wire.states("other") == [(5, "END")]


def test_reload_of_a_model_that_does_not_load(tmp_path, base_path):
    (tmp_path / "bad" / "7").mkdir(parents=True)
    with serve(base_path) as server, connect(server) as wire:
        with fails("UNKNOWN") as caught:
            wire.call(
                "HandleReloadConfigRequest",
                reload_request(
                    model("m", base_path), model("bad", tmp_path / "bad")
                ),
            )
        message = caught[0].details()
        assert message.startswith(
            "1 model(s) did not become available: {{name: bad version: 7} "
            "due to error: NOT_FOUND: Could not find SavedModel .pb"
        )
        assert wire.line() == 3.0
        assert wire.states("bad") == [(7, "END")]


def test_reload_changes_base_path_and_policy(tmp_path, base_path, plus_three):
    for number in (2, 3):
        copy_version(plus_three, tmp_path / "new", number)
    with serve(base_path) as server, connect(server) as wire:
        wire.call(
            "HandleReloadConfigRequest",
            reload_request(model("m", tmp_path / "new", versions=[2, 3])),
        )
        assert server.models == {"m": [3, 2]}
        wire.call(
            "HandleReloadConfigRequest",
            reload_request(model("m", tmp_path / "new", versions=[2])),
        )
        assert server.models == {"m": [2]}
        assert wire.line() == 4.0


# -- the config file ---------------------------------------------------------


def config_text(**models):
    configs = "".join(
        f'config {{ name: "{name}" base_path: "{path}" '
        'model_platform: "tensorflow" }\n'
        for name, path in models.items()
    )
    return f"model_config_list {{\n{configs}}}\n"


def test_config_file_of_two_models(tmp_path, base_path, plus_three):
    copy_version(plus_three, tmp_path / "other", 1)
    file = tmp_path / "models.pbtxt"
    file.write_text(config_text(m=base_path, other=tmp_path / "other"))
    with serve(config_file=file) as server, connect(server) as wire:
        assert wire.line() == 3.0
        assert wire.line(model="other") == 4.0
        file.write_text(config_text(other=base_path))
        time.sleep(0.2)
        # It is not read again unless asked for.
        assert wire.line() == 3.0


def test_config_file_is_polled(tmp_path, base_path, plus_three):
    copy_version(plus_three, tmp_path / "other", 2)
    file = tmp_path / "models.pbtxt"
    file.write_text(config_text(m=base_path))
    with (
        serve(config_file=file, config_poll_seconds=0.05) as server,
        connect(server) as wire,
    ):
        file.write_text("model_config_list {")
        time.sleep(0.2)
        assert wire.line() == 3.0
        file.write_text(config_text(other=tmp_path / "other"))
        wait_for(lambda: server.models == {"m": [], "other": [2]})
        assert wire.line(model="other") == 4.0


BAD_CONFIGS = {
    "does not parse": (
        "model_config_list { confg {} }",
        "Error parsing text-format tensorflow.serving.ModelServerConfig: 1:21",
    ),
    "empty": ("", "`model_config_list` is wanted. Received: None"),
    "custom": ("custom_model_config {}", "Received: custom_model_config"),
}


@pytest.mark.parametrize(
    "text, message", BAD_CONFIGS.values(), ids=BAD_CONFIGS.keys()
)
def test_bad_config_file(tmp_path, text, message):
    file = tmp_path / "models.pbtxt"
    file.write_text(text)
    with pytest.raises(ValueError) as caught:
        serve(config_file=file)
    assert f"Invalid protobuf file: '{file}'" in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text, message",
    [
        (
            'model_config_list { config { name: "m" base_path: "m" '
            'model_platform: "tensorflow" } }',
            "INVALID_ARGUMENT: Expected model m to have an absolute path or "
            "URI; got base_path()=m",
        ),
        (
            'model_config_list { config { name: "m" base_path: "/m" '
            "model_type: OTHER } }",
            "INVALID_ARGUMENT: ModelServerConfig::model_type 2 not supported.",
        ),
        (
            'model_config_list { config { name: "m" base_path: "/m" '
            'model_type: TENSORFLOW model_platform: "tensorflow" } }',
            "INVALID_ARGUMENT: Illegal setting both ModelServerConfig::"
            "model_type (deprecated) and ModelServerConfig::model_platform.",
        ),
    ],
    ids=["relative path", "other type", "type and platform"],
)
def test_config_file_against_the_rules(tmp_path, text, message):
    file = tmp_path / "models.pbtxt"
    file.write_text(text)
    with pytest.raises(ValueError) as caught:
        serve(config_file=file).start()
    assert str(caught.value) == f"Failed to start server. Error: {message}"


def test_config_file_with_the_old_model_type(tmp_path, base_path):
    file = tmp_path / "models.pbtxt"
    file.write_text(
        f'model_config_list {{ config {{ name: "m" base_path: "{base_path}" '
        "model_type: TENSORFLOW } }"
    )
    with serve(config_file=file) as server:
        assert server.models == {"m": [1]}


# -- what is no export, and what only looks like one --------------------------


def failure(base_path, **options):
    with pytest.raises(ValueError) as caught:
        serve(base_path, **options).start()
    return str(caught.value)


START = "Failed to start server. Error: UNKNOWN: 1 servable(s) did not become "
FAILED = START + "available: {{name: m version: 1} due to error: "


def test_a_base_path_without_a_folder_fails(tmp_path):
    message = failure(tmp_path / "absent")
    assert message.startswith(START)
    assert f"Could not find base path {tmp_path}/absent" in message


def test_a_base_path_without_versions_fails(tmp_path):
    (tmp_path / "latest").mkdir()
    assert (
        f"No versions of servable m found under base path {tmp_path}. Did you "
        "forget to name your leaf directory as a number (eg. '/1/')?"
    ) in failure(tmp_path)


def test_saved_model_missing(tmp_path):
    (tmp_path / "1").mkdir()
    message = failure(tmp_path)
    assert message.startswith(f"{FAILED}NOT_FOUND: Could not find SavedModel")
    assert message.endswith("}, }")


def test_saved_model_cut_short(base_path):
    path = base_path / "1" / "saved_model.pb"
    path.write_bytes(path.read_bytes()[:5000])
    assert failure(base_path) == (
        f"{FAILED}DATA_LOSS: Can't parse {path} as binary proto}}, }}"
    )


def test_variables_cut_short(base_path):
    data = next((base_path / "1" / "variables").glob("*.data*"))
    data.write_bytes(b"")
    assert failure(base_path).startswith(f"{FAILED}")


def test_variables_missing(base_path):
    # As TF Serving: it loads, and fails when it is asked.
    shutil.rmtree(base_path / "1" / "variables")
    with serve(base_path) as server, connect(server) as wire:
        with fails("FAILED_PRECONDITION") as caught:
            wire.line()
        assert "Could not find variable" in caught[0].details()


def rewrite(base_path, change):
    path = base_path / "1" / "saved_model.pb"
    saved = SavedModel.FromString(path.read_bytes())
    change(saved.meta_graphs[0])
    path.write_bytes(saved.SerializeToString())


def test_a_saved_model_with_other_tags_fails(base_path):
    rewrite(base_path, lambda graph: graph.meta_info_def.tags.append("gpu"))
    assert failure(base_path).startswith(
        f"{FAILED}NOT_FOUND: Could not find meta graph def matching supplied "
        "tags: { serve }"
    )


def test_a_saved_model_of_a_newer_format_fails(base_path):
    def change(graph):
        graph.graph_def.versions.producer = 10**6
        graph.graph_def.versions.min_consumer = 10**6

    rewrite(base_path, change)
    message = failure(base_path)
    assert message.startswith(f"{FAILED}INVALID_ARGUMENT: ")
    assert "min consumer version 1000000 above current version" in message


def test_operation_that_does_not_exist(base_path):
    rewrite(
        base_path,
        lambda graph: graph.graph_def.node.add(name="n", op="FromTheFuture"),
    )
    assert "FromTheFuture" in failure(base_path)


# -- warm-up -----------------------------------------------------------------


def test_warmup_requests_run_when_a_version_loads(base_path):
    request = predict_request(model="ignored", signature="line", x=X)
    write_warmup(base_path / "1", *[warmup_record(request)] * 3)
    with serve(base_path, rest_port=REST_PORT) as server:
        text = metrics_of(server)
    labels = f'model_path="{base_path}/1",status="OK"'
    assert f":model_warmup_latency_count{{{labels}}} 1" in text


def test_warmup_file_without_records(base_path):
    write_warmup(base_path / "1")
    with serve(base_path) as server:
        assert server.models == {"m": [1]}


def test_warmup_records_of_methods_not_offered_are_skipped(base_path):
    log = prediction_log_pb2.PredictionLog()
    log.classify_log.SetInParent()
    write_warmup(base_path / "1", log.SerializeToString())
    with serve(base_path) as server:
        assert server.models == {"m": [1]}


def session_log():
    log = prediction_log_pb2.PredictionLog()
    log.session_run_log.SetInParent()
    return log.SerializeToString()


def good_record():
    return warmup_record(predict_request(x=X))


BAD_WARMUPS = {
    "failing request": (
        lambda: [warmup_record(predict_request(x=np.float64([1.0])))],
        "INVALID_ARGUMENT: Expects arg[0] to be float but double is provided",
    ),
    "unknown signature": (
        lambda: [warmup_record(predict_request(signature="nope"))],
        'FAILED_PRECONDITION: Serving signature key "nope" not found.',
    ),
    "session run": (
        lambda: [session_log()],
        "UNIMPLEMENTED: Unsupported log_type for warmup: 5",
    ),
    "unparsable": (
        lambda: [b"not a log"],
        "INVALID_ARGUMENT: Failed to parse warmup record: ",
    ),
    "too many": (
        lambda: [good_record()] * 1001,
        "INVALID_ARGUMENT: Number of warmup records exceeds the maximum "
        "(1000) at ",
    ),
}


@pytest.mark.parametrize(
    "records, message", BAD_WARMUPS.values(), ids=BAD_WARMUPS.keys()
)
def test_bad_warmup_fails_the_load(base_path, records, message):
    write_warmup(base_path / "1", *records())
    assert failure(base_path).startswith(FAILED + message)


def test_warmup_not_in_tfrecord_format(base_path):
    write_warmup(base_path / "1")
    file = base_path / "1" / "assets.extra" / "tf_serving_warmup_requests"
    file.write_bytes(b"this is no TFRecord file at all")
    message = failure(base_path)
    assert message.startswith(f"{FAILED}DATA_LOSS: corrupted record at 0")
    assert message.endswith(
        ". Please verify your warmup data is in TFRecord format.}, }"
    )
    with serve(base_path, warmup=False) as server:
        assert server.models == {"m": [1]}


# -- exports of other makers -------------------------------------------------


def dense():
    kernel = keras.initializers.Constant(0.25)
    layers = [keras.Input([2]), keras.layers.Dense(1, "relu", True, kernel)]
    return keras.Sequential(layers)


def check_dense(tmp_path, signature="serving_default"):
    with (
        serve(tmp_path / "keras", model_name="keras") as server,
        connect(server) as wire,
    ):
        metadata = wire.call(
            "GetModelMetadata", metadata_request("signature_def", model="keras")
        )
        signatures = get_model_metadata_pb2.SignatureDefMap()
        metadata.metadata["signature_def"].Unpack(signatures)
        (name,) = signatures.signature_def[signature].inputs
        response = wire.predict(
            model="keras",
            signature=signature,
            **{name: np.float32([[1.0, 3.0]])},
        )
        # 0.25 * (1 + 3), by hand.
        (output,) = response.outputs.values()
        assert output.float_val == [1.0]


def test_keras_export(tmp_path):
    dense().export(str(tmp_path / "keras" / "1"), verbose=False)
    check_dense(tmp_path)


def test_keras_export_under_mirrored_strategy(tmp_path):
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        archived = dense()
    archive = keras.export.ExportArchive()
    archive.track(archived)
    archive.add_endpoint(
        "custom",
        lambda x: archived(x, training=False),
        [tf.TensorSpec([None, 2], name="x")],
    )
    archive.write_out(str(tmp_path / "keras" / "1"), verbose=False)
    check_dense(tmp_path, "custom")


def test_export_that_only_python_can_run(tmp_path):
    """A Keras model as a tracked attribute loses its variables' names."""
    module = tf.Module()
    module.model = dense()
    module.call = tf.function(
        lambda x: {"y": module.model(x)},
        input_signature=[tf.TensorSpec([None, 2], name="x")],
    )
    tf.saved_model.save(
        module,
        str(tmp_path / "keras" / "1"),
        signatures={"serving_default": module.call},
    )
    with (
        serve(tmp_path / "keras", model_name="keras") as server,
        connect(server) as wire,
    ):
        with fails("FAILED_PRECONDITION") as caught:
            wire.predict(model="keras", x=np.float32([[1.0, 3.0]]))
        assert "Could not find variable" in caught[0].details()
