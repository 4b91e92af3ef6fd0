"""The servers of a client, and which version of a model they serve."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

import grpc
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import prediction_service_pb2_grpc

from rs_keras._checks import check_count
from rs_keras._checks import check_not_negative
from rs_keras._checks import check_positive
from rs_keras.serving.client import channels
from rs_keras.serving.client.channels import Endpoint
from rs_keras.serving.client.served_model import ServedModel
from rs_keras.serving.tls import ClientTLS

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
        num_requests: Number of requests sent, for balancing.
        rate: Draws per second of one request; None before the first.
        closed: Whether the connection was closed.
    """

    def __init__(self, endpoint: Endpoint, tls: ClientTLS | None) -> None:
        self.endpoint = endpoint
        self.label = endpoint.label
        self.ready = False
        self.num_requests = 0
        self.rate: float | None = None
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

    def measured(self, draws: int, seconds: float) -> None:
        """Updates the rate: the mean of its last value and this request's."""
        rate = draws / max(seconds, 1e-3)
        self.rate = rate if self.rate is None else (self.rate + rate) / 2

    def close(self) -> None:
        """Ends the connection."""
        self.closed = True
        self._channel.close()


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
        self.model: ServedModel | None = None
        self.closed = False
        self._servers: dict[str, Server] = {}
        self._lock = threading.Lock()

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
        for server in self.servers:
            server.close()
