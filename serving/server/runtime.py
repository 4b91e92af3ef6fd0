"""Runs a SavedModel as TF Serving does: in a TensorFlow session.

`tf.saved_model.load` runs functions eagerly: it casts nothing, knows no
deadline, reports other errors, and works on exports that TF Serving cannot
run. A `Session` is the very class that TF Serving drives (DirectSession), so
codes, messages and the cancelling of a loop at its deadline are the same.

`Session.run` is not: it casts what is fed and checks shapes in Python. The
call below it is TensorFlow's private API (`rs_keras._compat`).
"""

import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from rs_keras import _compat
from rs_keras.serving.server.grpc_errors import StatusError
from rs_keras.serving.server.grpc_errors import from_tensorflow
from rs_keras.serving.server.grpc_errors import invalid

# What a run is, which gives it its threads and its priority: a short request
# to a certifier, a slice of a long one, or a run of a model of which the server
# knows nothing, whose loops must not keep the others waiting.
SHORT, SLICES, WHOLE = range(3)

_POOL_OF_WHOLE = 1

_TAG = "serve"
_INIT_SIGNATURE = "__saved_model_init_op"
# Where TensorFlow 1 kept what TensorFlow 2 keeps in the signature above.
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")


class SessionModel:
    """One loaded version of a model.

    Args:
        directory: A SavedModel with the tag `serve`.

    Raises:
        StatusError: If it cannot be loaded, with TF Serving's status.
    """

    def __init__(self, directory: str) -> None:
        meta_graph = _read_meta_graph(directory)
        self.signatures = dict(meta_graph.signature_def)
        self._graph = tf.Graph()
        self._session = tf.compat.v1.Session(
            graph=self._graph, config=_config()
        )
        try:
            with self._graph.as_default():
                tf.import_graph_def(meta_graph.graph_def, name="")
            self._restore(meta_graph, directory)
            self._graph.finalize()
            _compat.prepare_session(self._session)
        except BaseException as error:
            self.close()
            if isinstance(error, tf.errors.OpError):
                raise from_tensorflow(error) from error
            if isinstance(error, ValueError | KeyError):
                # What the import refuses arrives as a Python error.
                raise invalid(str(error)) from error
            raise

    def call(
        self,
        name: str,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str],
        timeout: float | None = None,
        kind: int = SHORT,
    ) -> list[np.ndarray]:
        """Runs a signature.

        Args:
            name: The signature.
            inputs: By name.
            outputs: The names of the outputs wanted.
            timeout: As of `run`.
            kind: As of `run`.

        Returns:
            One array for each output.

        Raises:
            StatusError: As of `run`.
        """
        signature = self.signatures[name]
        feeds = {
            signature.inputs[alias].name: inputs[alias]
            for alias in sorted(signature.inputs)
        }
        fetches = [signature.outputs[alias].name for alias in outputs]
        return self.run(feeds, fetches, timeout, kind)

    def run(
        self,
        feeds: Mapping[str, np.ndarray],
        fetches: Sequence[str],
        timeout: float | None = None,
        kind: int = WHOLE,
    ) -> list[np.ndarray]:
        """Computes `fetches`, as `Session::Run` in C++ does.

        Args:
            feeds: Arrays by tensor name (`name:0`); dtypes are not cast.
            fetches: Names of tensors; a bare operation means its output 0.
            timeout: Seconds after which running loops are stopped; `None`
                never.
            kind: SHORT, SLICES or WHOLE.

        Returns:
            One array for each fetch.

        Raises:
            StatusError: With the runtime's own code and message.
        """
        # 0 means no limit.
        milliseconds = 0 if timeout is None else max(1, int(timeout * 1000))
        options = tf.compat.v1.RunOptions(timeout_in_ms=milliseconds)
        if kind == WHOLE:
            options.inter_op_thread_pool = _POOL_OF_WHOLE
        else:
            # Of two runs on these threads, the short one is served first.
            options.experimental.use_run_handler_pool = True
            priority = options.experimental.run_handler_pool_options
            priority.priority = int(kind == SHORT)
        try:
            outputs = _compat.run_session(
                self._session, feeds, fetches, options
            )
            return [_array(output) for output in outputs]
        except tf.errors.OpError as error:
            raise from_tensorflow(error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise invalid(str(error.args[0])) from error
        except RuntimeError as error:
            # The session was closed by a server that stops.
            raise StatusError(
                "CANCELLED", "Session has been closed."
            ) from error

    def cancel(self) -> None:
        """Stops what runs: it ends with CANCELLED, as does what comes."""
        self._session.close()

    def close(self) -> None:
        """Frees the model. Nothing may be running."""
        self._session.close()
        del self._session
        _compat.dismantle_graph(self._graph)

    def _restore(self, meta_graph: Any, directory: str) -> None:
        feeds = {
            asset.tensor_info.name: tf.io.gfile.join(
                directory, "assets", asset.filename
            )
            for asset in meta_graph.asset_file_def
        }
        saver = meta_graph.saver_def
        variables = tf.io.gfile.join(directory, "variables", "variables")
        # As TF Serving: an export without this file has no variables.
        if saver.restore_op_name and tf.io.gfile.exists(f"{variables}.index"):
            self._session.run(
                self._graph.get_operation_by_name(saver.restore_op_name),
                {saver.filename_tensor_name: variables, **feeds},
            )
        initializer = _initializer(meta_graph)
        if initializer:
            self._session.run(
                self._graph.get_operation_by_name(initializer), feeds
            )


def _config() -> Any:
    """Returns a configuration of a session, with its sets of threads."""
    config = tf.compat.v1.ConfigProto()
    cores = os.cpu_count() or 1
    # The first set is that of runs with a priority. A slice holds up to two of
    # them, and short requests must find one.
    for name, threads in (("certifiers", 2 * cores + 1), ("whole", 4 * cores)):
        pool = config.session_inter_op_thread_pool.add()
        pool.num_threads = threads
        # One set for all models of the process.
        pool.global_name = f"rs_keras_{name}"
    return config


def _read_meta_graph(directory: str) -> Any:
    path = tf.io.gfile.join(directory, "saved_model.pb")
    if not tf.io.gfile.exists(path):
        raise StatusError(
            "NOT_FOUND",
            "Could not find SavedModel .pb or .pbtxt at supplied export "
            f"directory path: {directory}. Check that the directory exists "
            "and that you have the right permissions for accessing it.",
        )
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    try:
        saved_model = SavedModel.FromString(content)
    except DecodeError as error:
        raise StatusError(
            "DATA_LOSS", f"Can't parse {path} as binary proto"
        ) from error
    for meta_graph in saved_model.meta_graphs:
        if list(meta_graph.meta_info_def.tags) == [_TAG]:
            return meta_graph
    raise StatusError(
        "NOT_FOUND",
        "Could not find meta graph def matching supplied tags: "
        f"{{ {_TAG} }}. To inspect available tag-sets in the SavedModel, "
        "please use the SavedModel CLI: `saved_model_cli`",
    )


def _initializer(meta_graph: Any) -> str:
    if _INIT_SIGNATURE in meta_graph.signature_def:
        signature = meta_graph.signature_def[_INIT_SIGNATURE]
        return str(signature.outputs[_INIT_SIGNATURE].name)
    for key in _INIT_COLLECTIONS:
        if key in meta_graph.collection_def:
            return str(meta_graph.collection_def[key].node_list.value[0])
    return ""


def _array(output: Any) -> np.ndarray:
    """A scalar string comes as `bytes`, of which NumPy would cut zeros."""
    return np.asarray(output, object if isinstance(output, bytes) else None)
