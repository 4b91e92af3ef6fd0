"""The servers behind a client, and which version of a model they serve."""

import threading
from collections.abc import Iterable
from collections.abc import Sequence

import grpc
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import prediction_service_pb2_grpc

from rs_keras._checks import check_count
from rs_keras._checks import check_not_negative
from rs_keras._checks import check_positive
from rs_keras.serving.client import channels
from rs_keras.serving.client.channels import Address
from rs_keras.serving.client.channels import ClientTLS
from rs_keras.serving.client.channels import Endpoint
from rs_keras.serving.client.served_model import ServedModel

_DISCONNECTED = (
    grpc.ChannelConnectivity.IDLE,
    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
    grpc.ChannelConnectivity.SHUTDOWN,
)


class Server:
    """One server: its channel, and how fast it is.

    Attributes:
        label: What to call it.
        ready: Whether it is known to serve the model, and to answer.
        asked: Requests sent, so that all get their turn.
        rate: Draws a second of one request; None before the first.
        closed: Whether nothing can be sent any more.
    """

    def __init__(self, endpoint: Endpoint, tls: ClientTLS | None) -> None:
        self.endpoint = endpoint
        self.label = endpoint.label
        self.ready = False
        self.asked = 0
        self.rate: float | None = None
        self.closed = False
        self._channel = channels.open_channel(endpoint, tls)
        prediction = prediction_service_pb2_grpc.PredictionServiceStub(
            self._channel
        )
        models = model_service_pb2_grpc.ModelServiceStub(self._channel)
        self.predict = prediction.Predict
        self.status = models.GetModelStatus
        self._channel.subscribe(self._changed)

    def _changed(self, state: grpc.ChannelConnectivity) -> None:
        # gRPC connects again by itself, maybe to a server that was started
        # anew with something else: it must say what it serves.
        if state in _DISCONNECTED:
            self.ready = False

    def measured(self, draws: int, seconds: float) -> None:
        """Notes how long a request took: half of what is known is the last."""
        rate = draws / max(seconds, 1e-3)
        self.rate = rate if self.rate is None else (self.rate + rate) / 2

    def close(self) -> None:
        """Ends the connection."""
        self.closed = True
        self._channel.close()


class Fleet:
    """The servers of a client; several operations may use it at a time.

    Args:
        addresses: Where the servers are.
        model_name: What they are asked for.
        version: Of the model; None for the newest that all have.
        timeout: Seconds that one request may take.
        retries: How often in a row a server may fail in one operation, beyond
            the first time.
        in_flight: Requests a server that are under way at a time.
        tls: For encrypted connections.
        audit: Share of the chunks that a second server repeats.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        model_name: str,
        version: int | None,
        timeout: float,
        retries: int,
        in_flight: int,
        tls: ClientTLS | None,
        audit: float,
    ) -> None:
        self.addresses = tuple(addresses)
        self.model_name = model_name
        self.version = version
        self.timeout = timeout
        self.retries = retries
        self.in_flight = in_flight
        self.tls = tls
        self.audit = audit
        self.model: ServedModel | None = None
        self.closed = False
        self._servers: dict[str, Server] = {}
        self._lock = threading.Lock()

    @property
    def servers(self) -> list[Server]:
        """The servers that are known now."""
        return list(self._servers.values())

    @property
    def grows(self) -> bool:
        """Whether a name may have got other machines since it was asked."""
        return any(address.all_of_name for address in self.addresses)

    def update(self, endpoints: Iterable[Endpoint]) -> None:
        """Takes over the servers that the addresses lead to now."""
        with self._lock:
            old = self._servers
            new = {endpoint.target: endpoint for endpoint in endpoints}
            self._servers = {
                target: old.get(target) or Server(endpoint, self.tls)
                for target, endpoint in new.items()
            }
            for target, server in old.items():
                if target not in new and not server.ready:
                    server.close()
                elif target not in new:
                    # DNS may forget a machine that still works for a while.
                    self._servers[target] = server

    def pin(self, model: ServedModel, servers: Iterable[Server]) -> None:
        """Says which version is asked for from now on, and who has it."""
        for server in self.servers:
            server.ready = False
        for server in servers:
            server.ready = True
        self.model = model

    def forget(self, model: ServedModel) -> None:
        """Says that a version is gone."""
        if self.model is model:
            self.model = None

    def close(self) -> None:
        """Ends all connections."""
        self.closed = True
        for server in self.servers:
            server.close()


def fleet_of(
    servers: str | Iterable[str],
    model_name: str = "default",
    version: int | None = None,
    timeout: float = 60.0,
    retries: int = 5,
    in_flight: int = 2,
    tls: ClientTLS | bool | None = None,
    audit: float = 0.0,
) -> Fleet:
    """Returns the fleet that a client's arguments mean, checked."""
    if not isinstance(model_name, str) or not model_name:
        raise ValueError(
            "`model_name` must be the name that the servers give the model. "
            f"Received: model_name={model_name!r}"
        )
    if not isinstance(tls, ClientTLS | bool | None):
        raise ValueError(
            "`tls` must be a ClientTLS, True (the system's certificates) or "
            f"None. Received: tls={tls!r}"
        )
    if check_not_negative("audit", audit) > 1:
        raise ValueError(
            f"`audit` must be in [0, 1]. Received: audit={audit!r}"
        )
    return Fleet(
        channels.parse(servers),
        model_name,
        None if version is None else check_count("version", version),
        check_positive("timeout", timeout),
        check_count("retries", retries, 0),
        check_count("in_flight", in_flight),
        (ClientTLS() if tls else None) if isinstance(tls, bool) else tls,
        float(audit),
    )
