"""TF Serving's APIs in this process, for laptops, notebooks and tests."""

import logging
import os
import threading
from collections.abc import Callable
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import KW_ONLY
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc
from grpc_health.v1 import health
from grpc_health.v1 import health_pb2

from rs_keras._checks import check_count
from rs_keras._checks import check_not_negative
from rs_keras.serving.event_log import LOGGER
from rs_keras.serving.event_log import event
from rs_keras.serving.server import addresses
from rs_keras.serving.server import model_config
from rs_keras.serving.server.grpc_errors import StatusError
from rs_keras.serving.server.handlers import Handlers
from rs_keras.serving.server.manager import ModelManager
from rs_keras.serving.server.metrics import FULLNESS
from rs_keras.serving.server.metrics import Metrics
from rs_keras.serving.server.model_config import Versions
from rs_keras.serving.server.rest.app import RESTApp
from rs_keras.serving.server.rest.endpoint import Endpoint
from rs_keras.serving.server.scheduling.limits import Limits
from rs_keras.serving.server.scheduling.scheduler import Scheduler
from rs_keras.serving.server.services import generic_handlers
from rs_keras.serving.server.streams import Streams
from rs_keras.serving.tls import TLS
from rs_keras.serving.tls import PathLike

_GRPC_OPTIONS = (
    # A Python server would refuse messages above 4 MB; TF Serving does not.
    ("grpc.max_send_message_length", -1),
    # Otherwise a second server could share the port, and requests would be
    # split between the two.
    ("grpc.so_reuseport", 0),
    # Finds out about clients whose machine or network is gone.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
# A request holds a thread while it arrives, waits and runs. They are made when
# they are needed.
_THREADS = 512
# Of a message, beside its tensors.
_OVERHEAD = 2**20
_QUEUE = 1024
# The longest grace, in seconds.
_DAY = 86_400
# TF Serving's health service knows these names, not the qualified ones.
_HEALTH_NAMES = ("", "ModelService", "PredictionService")


@dataclass(eq=False, repr=False)
class EmbeddedServer:
    """Serves SavedModels over gRPC and REST as tensorflow_model_server does.

    Requests, answers, errors and their order are TF Serving's, on the same
    session runtime. It is one Python process; tensorflow_model_server, which
    takes the same exports and clients, is for more than one machine.

    Not offered: Classify, Regress, MultiInference, batching. A model
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
        limits: What one request and one client may ask; `Limits()` when None.
        max_concurrency: Requests at a time to models that are no exports of
            rs-keras, by default 4 for each core; one more gets
            RESOURCE_EXHAUSTED. Requests to certifiers are admitted by their
            cost, see `Limits`.
        allow_reload: Whether clients may change what is served
            (HandleReloadConfigRequest). There is no authentication: then
            whoever reaches the port may.
        tls: A `TLS`, for encrypted connections.
        rest_port: Of the REST API, where Prometheus finds the metrics, too; 0
            for any free port. It needs waitress (`rs-keras[rest]`), and is
            in the clear: `tls` is of gRPC.
        warmup: Whether to run an export's warm-up requests.
        allow_unavailable_labels: Whether a config file may label a version
            before it serves (`--allow_version_labels_for_unavailable_models`).
        load_retries: How often a version that appears while the server runs
            is tried again; it may still be on its way to the disk.
        load_retry_seconds: The pause in between.

    Call `stop` or use it in a `with` block: a process does not exit while one
    of its requests runs.

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

    >>> server = EmbeddedServer(folder, model_name="half", port=0).start()
    >>> server.rest_address is None  # as no `rest_port` was given
    True
    >>> server.wait(timeout=0.1)  # has it stopped?
    False
    >>> server.stop()
    >>> server.wait()
    True
    """

    export_dir: PathLike | None = None
    _: KW_ONLY
    model_name: str = "default"
    config_file: PathLike | None = None
    host: str = "127.0.0.1"
    port: int | None = 8500
    unix_socket: PathLike | None = None
    versions: Versions = "latest"
    labels: Mapping[str, int] | None = None
    poll_seconds: float = 1.0
    config_poll_seconds: float = 0.0
    limits: Limits | None = None
    max_concurrency: int | None = None
    allow_reload: bool = False
    tls: TLS | None = None
    rest_port: int | None = None
    warmup: bool = True
    allow_unavailable_labels: bool = False
    load_retries: int = 5
    load_retry_seconds: float = 60.0

    def __post_init__(self) -> None:
        self._check()
        if self.config_file is not None:
            self._config = model_config.read(self.config_file)
        else:
            folder = self.export_dir or ""
            self._config = model_config.single(
                folder, self.model_name, self.versions, self.labels
            )
        self._socket_path = addresses.checked_socket(self.unix_socket)
        self._metrics = Metrics()
        self._manager = ModelManager(
            self._metrics,
            run_warmup=self.warmup,
            allow_unavailable_labels=self.allow_unavailable_labels,
            load_retries=self.load_retries,
            retry_seconds=self.load_retry_seconds,
        )
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._complaint = ""
        self._bound_port: int | None = None
        self._grpc: grpc.Server | None = None
        self._pool = ThreadPoolExecutor(_THREADS, "request")
        concurrency = self.max_concurrency or 4 * (os.cpu_count() or 1)
        self._limits = self.limits or Limits()
        self._scheduler = Scheduler(self._limits, concurrency)
        self._metrics.gauge(FULLNESS, lambda: self._scheduler.fullness)
        self._streams = Streams(
            self._limits.max_streams, self._limits.receive_seconds
        )
        self._handlers = Handlers(
            self._manager, self._metrics, self._scheduler, self.allow_reload
        )
        self._endpoint: Endpoint | None = None
        self._stopping = threading.Event()
        self._pollers: list[threading.Thread] = []
        # The REST endpoint and the socket's file, while there are any.
        self._opened = ExitStack()

    def _check(self) -> None:
        if (self.export_dir is None) == (self.config_file is None):
            raise ValueError(
                "Either `export_dir` or `config_file` must be given. "
                f"Received: export_dir={self.export_dir!r}, "
                f"config_file={self.config_file!r}"
            )
        if self.port is None and self.unix_socket is None:
            raise ValueError(
                "`port` may be None only with a `unix_socket`. "
                "Received: port=None, unix_socket=None"
            )
        for name in ("port", "rest_port"):
            if getattr(self, name) is not None:
                addresses.check_port(name, getattr(self, name))
        check_not_negative("poll_seconds", self.poll_seconds)
        check_not_negative("config_poll_seconds", self.config_poll_seconds)
        check_count("load_retries", self.load_retries, 0)
        check_not_negative("load_retry_seconds", self.load_retry_seconds)
        if self.max_concurrency is not None:
            check_count("max_concurrency", self.max_concurrency)

    @property
    def address(self) -> str:
        """Where a client on this machine finds it: `host:port`, or
        `unix:/path` without a port.
        """
        if self._grpc is None:
            raise RuntimeError("The server is not running; call start().")
        if self._bound_port is None:
            return f"unix:{self._socket_path}"
        return addresses.reachable(self.host, self._bound_port)

    @property
    def rest_address(self) -> str | None:
        """`host:port` of the REST API, if it is offered."""
        if self._endpoint is None:
            return None
        return addresses.reachable(self.host, self._endpoint.port)

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
            for port in (self.port, self.rest_port):
                if port:
                    addresses.require_free(self.host, port)
            if self._socket_path is not None:
                addresses.require_free_socket(self._socket_path)
            try:
                self._load()
                self._listen()
            except BaseException:
                self._shut(0)
                raise
        return self

    def stop(self, grace: float | None = 5.0) -> None:
        """Refuses new requests, finishes running ones, and frees everything.

        Args:
            grace: Seconds that running requests have, at most a day; then
                they end with UNAVAILABLE. `None` is a day.
        """
        if grace is not None:
            check_not_negative("grace", grace)
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

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _load(self) -> None:
        labels = self.labels or {}
        try:
            # `labels` can only be checked once the model is loaded.
            self._manager.apply(
                self._config.model_config_list, check_labels=not labels
            )
        except StatusError as error:
            message = str(error).replace(" model(s) did", " servable(s) did")
            raise ValueError(
                f"Failed to start server. Error: {message}"
            ) from error
        served = self.models.get(self.model_name, [])
        for label, version in labels.items():
            if version not in served:
                raise ValueError(
                    "`labels` must name versions that are served "
                    f"({served}). Received: {label!r}: {version}"
                )
        self._poll(self._manager.poll, self.poll_seconds, "versions")
        if self.config_file is not None:
            self._poll(self._reload, self.config_poll_seconds, "config_file")

    def _poll(
        self, call: Callable[[], None], seconds: float, name: str
    ) -> None:
        """Starts a thread that calls a function until the server stops."""

        def run() -> None:
            while not self._stopping.wait(min(seconds, threading.TIMEOUT_MAX)):
                try:
                    call()
                except Exception:
                    # The next call may succeed.
                    LOGGER.exception("%s failed", name)

        if seconds:
            thread = threading.Thread(target=run, name=name, daemon=True)
            thread.start()
            self._pollers.append(thread)

    def _reload(self) -> None:
        """Reads the config file again; logs once what is wrong with it."""
        complaint = ""
        try:
            config = model_config.read(self.config_file or "")
            self._manager.apply(config.model_config_list)
        except (OSError, ValueError, StatusError) as error:
            complaint = str(error)
        if complaint and complaint != self._complaint:
            event(logging.ERROR, "config_refused", error=complaint)
        self._complaint = complaint

    def _listen(self) -> None:
        server = grpc.server(
            self._pool,
            options=[*_GRPC_OPTIONS, *_options_of(self._limits)],
            maximum_concurrent_rpcs=_THREADS + _QUEUE,
        )
        self._opened.enter_context(self._streams)
        self._add_services(server)
        if self.port is not None:
            target = addresses.join(self.host, self.port)
            self._bound_port = _bind(server, target, self.tls)
        if self._socket_path is not None:
            # In the clear, as TF Serving's: it does not leave the machine.
            _bind(server, f"unix:{self._socket_path}", None)
            unlink = Path(self._socket_path).unlink
            self._opened.callback(unlink, missing_ok=True)
        if self.rest_port is not None:
            app = RESTApp(self._handlers, self._streams)
            self._endpoint = self._opened.enter_context(
                Endpoint(app, self.host, self.rest_port, self._limits)
            )
        server.start()
        self._grpc = server

    def _add_services(self, server: grpc.Server) -> None:
        self._health = health.HealthServicer()
        for name in _HEALTH_NAMES:
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        server.add_generic_rpc_handlers(
            generic_handlers(self._handlers, self._streams, self._health)
        )

    def _shut(self, grace: float | None) -> None:
        ended = None
        # gRPC takes None for 0.
        seconds = _DAY if grace is None else min(grace, _DAY)
        if self._grpc is not None:
            self._health.enter_graceful_shutdown()
            ended = self._grpc.stop(seconds)
        if self._endpoint is not None:
            self._endpoint.finish(seconds)
        self._stopping.set()
        for poller in self._pollers:
            poller.join()
        if ended is not None:
            ended.wait()
        # Ends the runs whose requests gRPC has given up.
        self._manager.close()
        self._pool.shutdown()
        self._opened.close()
        self._grpc = None
        self._stopped.set()


def _options_of(limits: Limits) -> list[tuple[str, int]]:
    """Returns the options of gRPC that follow from limits."""
    options = {
        # Whole numbers take more bytes as they are sent than as tensors.
        "max_receive_message_length": 2 * limits.max_request_bytes + _OVERHEAD,
        # A connection that does not say in this time what it wants.
        "server_handshake_timeout_ms": int(limits.receive_seconds * 1000),
        "max_connection_idle_ms": int(limits.idle_seconds * 1000),
    }
    return [
        (f"grpc.{name}", min(value, 2**31 - 1))
        for name, value in options.items()
    ]


def _bind(server: grpc.Server, target: str, tls: TLS | None) -> int:
    try:
        if tls is None:
            return int(server.add_insecure_port(target))
        return int(server.add_secure_port(target, tls.credentials()))
    except RuntimeError as error:
        raise OSError(f"Cannot listen on {target}: {error}") from error
