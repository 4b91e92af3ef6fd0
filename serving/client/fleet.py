"""The servers of a client, and which version of a model they serve."""

import random
import threading
from collections.abc import Iterable
from collections.abc import Iterator
from concurrent.futures import CancelledError
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import prediction_service_pb2_grpc

from rs_keras._checks import check_count
from rs_keras._checks import check_not_negative
from rs_keras._checks import check_positive
from rs_keras.serving.client import channels
from rs_keras.serving.client.channels import Endpoint
from rs_keras.serving.client.channels import Metadata
from rs_keras.serving.client.channels import Token
from rs_keras.serving.client.load.latency import Latency
from rs_keras.serving.client.load.window import Window
from rs_keras.serving.client.served_model import ServedModel
from rs_keras.serving.errors import Kind
from rs_keras.serving.tls import ClientTLS

# Draws of the requests whose latencies are compared.
_TYPICAL_DRAWS = 1_000
# Latencies below are noise.
_LEAST_LATENCY = 0.005
_DISCONNECTED = (
    grpc.ChannelConnectivity.IDLE,
    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
    grpc.ChannelConnectivity.SHUTDOWN,
)


class Server:
    """One server: its channel, and how fast it is.

    Attributes:
        label: Its name in messages.
        ready: Whether it serves the model and answers.
        latency: How long its requests take.
        window: How many requests may run on it.
        answered_at: Time of its last response (`time.monotonic`).
        probed_at: Time at which a call last asked for its description.
        failed_probes: How often it did not describe the model.
        failure: Why not, the last time.
        closed: Whether the connection was closed.
    """

    def __init__(self, endpoint: Endpoint, tls: ClientTLS | None) -> None:
        self.endpoint = endpoint
        self.label = endpoint.label
        self.ready = False
        self.latency = Latency()
        self.window = Window()
        self.answered_at = float("-inf")
        self.probed_at = float("-inf")
        self.failed_probes = 0
        self.failure = ""
        self.closed = False
        self._channel = channels.open_channel(endpoint, tls)
        self.predict = prediction_service_pb2_grpc.PredictionServiceStub(
            self._channel
        ).Predict
        self.status = model_service_pb2_grpc.ModelServiceStub(
            self._channel
        ).GetModelStatus
        self._channel.subscribe(self._changed)

    def _changed(self, state: grpc.ChannelConnectivity) -> None:
        # gRPC reconnects automatically, perhaps to a restarted server with
        # another model: the server must describe its model again.
        if state in _DISCONNECTED:
            self.ready = False

    def load(self, usual: float) -> float:
        """How long it should take to answer one more request, for comparison.

        Its recent latency, times the square of the number of its running
        requests and this one: a server that is idle is preferred.

        Args:
            usual: Seconds of a request for a server without recent ones.
        """
        seconds = self.latency.recent(_TYPICAL_DRAWS) or usual
        return (self.window.running + 1) ** 2 * max(seconds, _LEAST_LATENCY)

    def ended(self, begun: float, answered: bool, kind: Kind | None) -> None:
        """Records the end of a task's request, in a thread of gRPC.

        Args:
            begun: When it was sent (`time.monotonic`).
            answered: Whether it succeeded.
            kind: Of its failure; None without one, or if it was cancelled.
        """
        away = kind is Kind.AWAY
        self.window.ended(begun, answered, away or kind is Kind.BUSY)
        if away:
            self.window.restart()

    def stop_watching(self) -> None:
        """Ends the thread that watches the connection, soon."""
        self.closed = True
        self._channel.unsubscribe(self._changed)

    def close(self) -> None:
        """Ends the connection."""
        self.stop_watching()
        self._channel.close()


def by_load(servers: Iterable[Server]) -> list[Server]:
    """Returns servers in random order, those with little load rather first.

    Each is the first with probability proportional to 1 / load. So a server
    that was slow once is measured again, and one that is quick is not flooded.
    """
    servers = list(servers)
    latencies = [one.latency.recent(_TYPICAL_DRAWS) for one in servers]
    known = [seconds for seconds in latencies if seconds is not None]
    usual = sum(known) / len(known) if known else 1.0
    # The least of exponential variables of rates 1 / load.
    return sorted(
        servers, key=lambda one: one.load(usual) * random.expovariate(1.0)
    )


@dataclass(eq=False)
class Fleet:
    """The servers of a client; several calls may use it at a time.

    The arguments are those of `CertificationClient`; they are checked here.

    Attributes:
        client_tls: How connections are encrypted; None where they are not.
        model: The version to request; None if it is unknown.
        closed: Whether the client was closed.
    """

    addresses: str | Iterable[str]
    model_name: str
    version: int | None
    timeout: float
    retries: int
    in_flight: int
    tls: ClientTLS | bool | None
    audit: float
    token: Token | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model_name, str) or not self.model_name:
            raise ValueError(
                "`model_name` must be the name that the servers give the "
                f"model. Received: model_name={self.model_name!r}"
            )
        if not isinstance(self.tls, ClientTLS | bool | None):
            raise ValueError(
                "`tls` must be a ClientTLS, True (the system's certificates) "
                f"or None. Received: tls={self.tls!r}"
            )
        if self.version is not None:
            self.version = check_count("version", self.version)
        self.timeout = check_positive("timeout", self.timeout)
        self.retries = check_count("retries", self.retries, 0)
        self.in_flight = check_count("in_flight", self.in_flight)
        self.audit = check_not_negative("audit", self.audit)
        if self.audit > 1:
            raise ValueError(
                f"`audit` must be in [0, 1]. Received: audit={self.audit!r}"
            )
        tls = ClientTLS() if self.tls is True else self.tls
        self.client_tls = tls if isinstance(tls, ClientTLS) else None
        self._addresses = channels.parse(self.addresses)
        channels.check_token(self.token, self._addresses, self.client_tls)
        self.model: ServedModel | None = None
        self.closed = False
        self._servers: dict[str, Server] = {}
        self._lock = threading.Lock()
        self._discovery: Future[ServedModel] | None = None

    @property
    def servers(self) -> list[Server]:
        """The servers that are known now."""
        return list(self._servers.values())

    @property
    def may_have_grown(self) -> bool:
        """Whether a DNS name may have new machines."""
        return any(address.all_of_name for address in self._addresses) and any(
            not server.ready for server in self.servers
        )

    def metadata(self) -> Metadata | None:
        """Returns the metadata of a request, with the token of the moment."""
        return channels.bearer(self.token)

    def resolve(self) -> None:
        """Resolves the addresses and updates the servers.

        Raises:
            ServingError: If a name does not resolve.
        """
        new = {
            endpoint.target: endpoint
            for address in self._addresses
            for endpoint in channels.resolve(address)
        }
        with self._lock:
            old = self._servers
            self._servers = {
                target: old.get(target) or Server(endpoint, self.client_tls)
                for target, endpoint in new.items()
            }
            for target, server in old.items():
                if target not in new and not server.ready:
                    server.close()
                elif target not in new:
                    # A machine may leave DNS before it stops working.
                    self._servers[target] = server

    def join_discovery(self) -> tuple["Future[ServedModel]", bool]:
        """Returns the model that is being discovered, and who does it.

        If the second is true, the caller: by `leading`.
        """
        with self._lock:
            leads = self._discovery is None
            if self._discovery is None:
                self._discovery = Future()
            return self._discovery, leads

    @contextmanager
    def leading(self, found: "Future[ServedModel]") -> Iterator[None]:
        """Passes what is raised to all who wait for the model."""
        try:
            yield
        except CancelledError:
            raise
        except Exception as error:
            found.set_exception(error)
            raise
        finally:
            self._discovery = None
            # Without a result or an error, the call was stopped.
            found.cancel()

    def pin(self, model: ServedModel, servers: Iterable[Server]) -> None:
        """Sets the version to request, and the servers that have it."""
        for server in self.servers:
            server.ready = False
        for server in servers:
            server.ready = True
        self.model = model

    def forget(self, model: ServedModel) -> None:
        """Unsets the version if it is this one."""
        if self.model is model:
            self.model = None

    def close(self) -> None:
        """Ends all connections."""
        self.closed = True
        servers = self.servers
        # gRPC watches each connection for up to 0.2 s more, and closes it
        # only then: so all at the same time.
        for server in servers:
            server.stop_watching()
        for server in servers:
            server.close()
