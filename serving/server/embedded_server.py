"""TF Serving's gRPC API in this process, for laptops, notebooks and tests."""

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from typing import Self

import grpc
from grpc_health.v1 import health
from grpc_health.v1 import health_pb2
from grpc_health.v1 import health_pb2_grpc
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import prediction_service_pb2_grpc

from rs_keras.serving.event_log import event
from rs_keras.serving.server import model_config as configs
from rs_keras.serving.server.addresses import checked_socket
from rs_keras.serving.server.addresses import join
from rs_keras.serving.server.addresses import reachable
from rs_keras.serving.server.addresses import require_free
from rs_keras.serving.server.addresses import require_free_socket
from rs_keras.serving.server.manager import ModelManager
from rs_keras.serving.server.metrics import Metrics
from rs_keras.serving.server.metrics import MetricsEndpoint
from rs_keras.serving.server.model_config import Versions
from rs_keras.serving.server.services import ModelService
from rs_keras.serving.server.services import PredictionService
from rs_keras.serving.server.status import StatusError
from rs_keras.serving.server.threads import Repeater
from rs_keras.serving.server.threads import ThreadPool
from rs_keras.serving.tls import TLS

_GRPC_OPTIONS = (
    # A Python server would refuse messages above 4 MB; TF Serving does not.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Otherwise a second server shares the port, and each answers some.
    ("grpc.so_reuseport", 0),
    # Finds out about clients whose machine or network is gone.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
# A request holds a thread while it arrives, however slowly. These are for
# the ones that wait, ask for a state or are turned away.
_SPARE_THREADS = 256
_QUEUE = 1024
# TF Serving's health service knows these names, not the qualified ones.
_HEALTH_NAMES = ("", "ModelService", "PredictionService")


class EmbeddedServer:
    """Serves SavedModels over gRPC as tensorflow_model_server does.

    Requests, answers, errors and their order are TF Serving's, on the same
    session runtime. It is ONE Python process: the way past one machine is
    tensorflow_model_server, which takes the same exports and clients.

    Not offered: REST, Classify, Regress, MultiInference, batching. A model
    with `jit_compile=True` runs here and not in a default
    tensorflow_model_server.

    Args:
        export_dir: The folder that holds `1/`, `2/`, ...; each is a
            SavedModel with the tag `serve`.
        model_name: What clients ask for.
        config_file: Instead of `export_dir`: TF Serving's model config file,
            for several models.
        host: The interface to listen on; `"0.0.0.0"` for all. There is no
            authentication but `tls` with `client_verify`.
        port: 0 for any free one, `None` for none.
        unix_socket: The path of a socket to listen on as well, without TLS.
        versions: `"latest"`, `"all"`, the n latest, or a list of versions.
        labels: Versions by label, such as `{"stable": 1}`.
        poll_seconds: How often to look for new versions; 0 never.
        config_poll_seconds: How often to read `config_file` again; 0 never.
        max_concurrency: Predict requests at a time, 4 for each core unless
            told; one more gets RESOURCE_EXHAUSTED.
        tls: A `TLS`, for encrypted connections.
        metrics_port: Where Prometheus finds the metrics; 0 for any free port.
        warmup: Whether to run an export's warm-up requests.
        allow_unavailable_labels: Whether a config file may label a version
            before it serves (`--allow_version_labels_for_unavailable_models`).
        load_retries: How often a version that appears while the server runs
            is tried again; it may still be on its way to the disk.
        load_retry_seconds: The pause in between.

    Raises:
        ValueError: For an argument that breaks its rule.
        OSError: If `config_file` cannot be read.

    Example:

    >>> import tempfile
    >>> import tensorflow as tf
    >>> from rs_keras.serving import EmbeddedServer
    >>> folder = tempfile.mkdtemp()
    >>> half = tf.function(lambda x: {"y": x / 2})
    >>> half = half.get_concrete_function(tf.TensorSpec([None], name="x"))
    >>> tf.saved_model.save(tf.Module(), f"{folder}/1", signatures=half)
    >>> with EmbeddedServer(folder, model_name="half", port=0) as server:
    ...     server.address.startswith("127.0.0.1:"), server.models
    (True, {'half': [1]})

    Or, where it should go on serving:

    >>> server = EmbeddedServer(
    ...     folder, model_name="half", port=0, metrics_port=0).start()
    >>> server.metrics_address.startswith("127.0.0.1:")
    True
    >>> server.wait(timeout=0.1)  # has it stopped?
    False
    >>> server.stop()
    >>> server.wait()
    True
    """

    def __init__(
        self,
        export_dir: str | os.PathLike[str] | None = None,
        *,
        model_name: str = "default",
        config_file: str | os.PathLike[str] | None = None,
        host: str = "127.0.0.1",
        port: int | None = 8500,
        unix_socket: str | os.PathLike[str] | None = None,
        versions: Versions = "latest",
        labels: Mapping[str, int] | None = None,
        poll_seconds: float = 1.0,
        config_poll_seconds: float = 0.0,
        max_concurrency: int | None = None,
        tls: TLS | None = None,
        metrics_port: int | None = None,
        warmup: bool = True,
        allow_unavailable_labels: bool = False,
        load_retries: int = 5,
        load_retry_seconds: float = 60.0,
    ) -> None:
        if (export_dir is None) == (config_file is None):
            raise ValueError(
                "Either `export_dir` or `config_file` must be given. "
                f"Received: export_dir={export_dir!r}, "
                f"config_file={config_file!r}"
            )
        if port is None and unix_socket is None:
            raise ValueError(
                "`port` may be None only with a `unix_socket`. "
                "Received: port=None, unix_socket=None"
            )
        if max_concurrency is None:
            max_concurrency = 4 * (os.cpu_count() or 1)
        _check_port("port", port)
        _check_port("metrics_port", metrics_port)
        _check_number("poll_seconds", poll_seconds, 0)
        _check_number("config_poll_seconds", config_poll_seconds, 0)
        _check_number("load_retries", load_retries, 0)
        _check_number("load_retry_seconds", load_retry_seconds, 0)
        _check_number("max_concurrency", max_concurrency, 1)
        self._config_file = config_file
        if config_file is not None:
            self._config = configs.read(config_file)
        else:
            self._config = configs.single(
                export_dir or "", model_name, versions, labels
            )
        self._host = host
        self._wanted_port = port
        self._unix_socket = checked_socket(unix_socket)
        self._poll_seconds = poll_seconds
        self._config_poll_seconds = config_poll_seconds
        self._max_concurrency = max_concurrency
        self._tls = tls
        self._metrics_port = metrics_port
        self._metrics = Metrics()
        self._manager = ModelManager(
            self._metrics,
            run_warmup=warmup,
            allow_unavailable_labels=allow_unavailable_labels,
            load_retries=load_retries,
            retry_seconds=load_retry_seconds,
        )
        self._labels = dict(labels or {})
        self._model_name = model_name
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._complaint = ""
        self._bound_port: int | None = None
        self._grpc: grpc.Server | None = None
        self._pool: ThreadPool | None = None
        self._endpoint: MetricsEndpoint | None = None
        self._repeaters: list[Repeater] = []

    @property
    def address(self) -> str:
        """Where a client on this machine finds it: `host:port`, or
        `unix:/path` without a port.
        """
        if self._grpc is None:
            raise RuntimeError("The server is not running; call start().")
        if self._bound_port is None:
            return f"unix:{self._unix_socket}"
        return reachable(self._host, self._bound_port)

    @property
    def metrics_address(self) -> str | None:
        """`host:port` of the metrics, if they are offered."""
        if self._endpoint is None:
            return None
        return reachable(self._host, self._endpoint.port)

    @property
    def models(self) -> dict[str, list[int]]:
        """The versions that are being served, by model, latest first."""
        return self._manager.available()

    def start(self) -> Self:
        """Loads the models, warms them up, then opens the port.

        Raises:
            ValueError: If a model does not become available, with TF
                Serving's message.
            OSError: If a port or socket is taken.
            RuntimeError: If it was started before.
        """
        with self._lock:
            if self._grpc is not None or self._stopped.is_set():
                raise RuntimeError("The server was started before.")
            self._check_free()
            try:
                self._load()
                self._listen()
            except BaseException:
                self._shut(0)
                raise
        return self

    def stop(self, grace: float | None = 5.0) -> None:
        """Refuses what comes, finishes what runs, and frees everything.

        Args:
            grace: Seconds that running requests have; then they end with
                UNAVAILABLE. `None` waits for them however long.
        """
        if grace is not None:
            _check_number("grace", grace, 0)
        with self._lock:
            if not self._stopped.is_set():
                self._shut(grace)

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until the server has stopped.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether it has stopped.
        """
        return self._stopped.wait(timeout)

    def __enter__(self) -> Self:
        return self.start() if self._grpc is None else self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _check_free(self) -> None:
        if self._wanted_port:
            require_free(self._host, self._wanted_port)
        if self._metrics_port:
            require_free(self._host, self._metrics_port)
        if self._unix_socket is not None:
            require_free_socket(self._unix_socket)

    def _load(self) -> None:
        try:
            # `labels` can only be checked once the model is loaded.
            self._manager.apply(
                self._config.model_config_list, check_labels=not self._labels
            )
        except StatusError as error:
            message = str(error).replace(" model(s) did", " servable(s) did")
            raise ValueError(
                f"Failed to start server. Error: {message}"
            ) from error
        served = self.models.get(self._model_name, [])
        for label, version in self._labels.items():
            if version not in served:
                raise ValueError(
                    "`labels` must name versions that are served "
                    f"({served}). Received: {label!r}: {version}"
                )
        if self._poll_seconds:
            self._repeaters.append(
                Repeater(self._manager.poll, self._poll_seconds, "versions")
            )
        if self._config_file is not None and self._config_poll_seconds:
            self._repeaters.append(
                Repeater(self._reload, self._config_poll_seconds, "config_file")
            )

    def _reload(self) -> None:
        """Reads the config file again; says once what is wrong with it."""
        complaint = ""
        try:
            config = configs.read(self._config_file or "")
            self._manager.apply(config.model_config_list)
        except (OSError, ValueError, StatusError) as error:
            complaint = str(error)
        if complaint and complaint != self._complaint:
            event(logging.ERROR, "config_refused", error=complaint)
        self._complaint = complaint

    def _listen(self) -> None:
        self._pool = ThreadPool(self._max_concurrency + _SPARE_THREADS)
        server = grpc.server(
            self._pool,
            options=_GRPC_OPTIONS,
            maximum_concurrent_rpcs=self._max_concurrency + _QUEUE,
        )
        self._add_services(server)
        if self._wanted_port is not None:
            target = join(self._host, self._wanted_port)
            self._bound_port = _bind(server, target, self._tls)
        if self._unix_socket is not None:
            # In the clear, as TF Serving's: it does not leave the machine.
            _bind(server, f"unix:{self._unix_socket}", None)
        if self._metrics_port is not None:
            self._endpoint = MetricsEndpoint(
                self._metrics.text, self._host, self._metrics_port
            )
        server.start()
        self._grpc = server

    def _add_services(self, server: grpc.Server) -> None:
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            PredictionService(
                self._manager, self._metrics, self._max_concurrency
            ),
            server,
        )
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(
            ModelService(self._manager, self._metrics), server
        )
        self._health = health.HealthServicer()
        for name in _HEALTH_NAMES:
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)

    def _shut(self, grace: float | None) -> None:
        refusing = None
        if self._grpc is not None:
            self._health.enter_graceful_shutdown()
            # Without a grace gRPC cancels at once; a day is "however long".
            refusing = self._grpc.stop(86_400 if grace is None else grace)
        for repeater in self._repeaters:
            repeater.close()
        if refusing is not None:
            refusing.wait()
        # Ends the runs whose requests gRPC has given up.
        self._manager.close()
        if self._pool is not None:
            self._pool.shutdown()
        if self._endpoint is not None:
            self._endpoint.close()
        if self._unix_socket is not None and self._grpc is not None:
            Path(self._unix_socket).unlink(missing_ok=True)
        self._grpc = None
        self._stopped.set()


def _bind(server: grpc.Server, target: str, tls: TLS | None) -> int:
    try:
        if tls is None:
            return int(server.add_insecure_port(target))
        return int(server.add_secure_port(target, tls.credentials()))
    except RuntimeError as error:
        raise OSError(f"Cannot listen on {target}: {error}") from error


def _check_port(name: str, port: Any) -> None:
    if port is None:
        return
    if isinstance(port, bool) or not isinstance(port, int):
        raise ValueError(f"`{name}` must be an int. Received: {name}={port!r}")
    if not 0 <= port <= 65535:
        raise ValueError(
            f"`{name}` must be between 0 and 65535. Received: {name}={port}"
        )


def _check_number(name: str, value: float, least: int) -> None:
    # Locks cannot wait longer than this.
    if not least <= value <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"`{name}` must be >= {least} and <= {threading.TIMEOUT_MAX:.0f}. "
            f"Received: {name}={value}"
        )
