"""What one request and one client may ask of a server."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rs_keras._checks import check_count
from rs_keras._checks import check_positive
from rs_keras.serving import tensors
from rs_keras.serving.server.grpc_errors import invalid

# As much as this many of the largest requests may be decoded at a time.
_LARGEST_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server; requests beyond them are refused unread.

    Those of a certifier's requests are part of what `describe` answers.

    Attributes:
        max_rows: Rows of a request to a certifier.
        max_draws: Draws per row, both rounds together; `None` leaves it to
            the export (`max_n` for each round).
        max_request_bytes: Bytes of a request's tensors, once decoded. (A few
            bytes can claim any size, as values may be left out.)
        max_seconds: The longest time of a request. It is the deadline of a
            request without one, and one that would take longer, by the
            measured cost of the model, is refused.
        max_backlog_seconds: Estimated time of all admitted work; more gets
            RESOURCE_EXHAUSTED.
        max_streams: Requests of one client (an IP address) at a time.
        receive_seconds: Time in which a request must have arrived in full.
        idle_seconds: Time after which a connection without requests is
            closed.

    Raises:
        ValueError: If a limit is out of its range.

    Example:

    >>> from rs_keras.serving import Limits
    >>> Limits(max_rows=64).max_rows
    64
    >>> Limits(max_seconds=0)
    Traceback (most recent call last):
    ValueError: `max_seconds` must be a finite number > 0. Received: ...
    """

    max_rows: int = 4096
    max_draws: int | None = None
    max_request_bytes: int = 2**27
    max_seconds: float = 600.0
    max_backlog_seconds: float = 1800.0
    max_streams: int = 128
    receive_seconds: float = 30.0
    idle_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_request_bytes", "max_streams"):
            check_count(name, getattr(self, name))
        if self.max_draws is not None:
            check_count("max_draws", self.max_draws)
        for field in dataclasses.fields(self):
            if field.name.endswith("_seconds"):
                check_positive(field.name, getattr(self, field.name))


def max_bytes_at_once(limits: Limits) -> int:
    """Bytes of all requests that are being answered, once decoded."""
    return _LARGEST_AT_ONCE * limits.max_request_bytes


def described(limits: Limits) -> dict[str, Any]:
    """The limits of a request to a certifier, by name."""
    names = ("max_rows", "max_draws", "max_request_bytes", "max_seconds")
    return {name: getattr(limits, name) for name in names}


def check_size(limits: Limits, inputs: Iterable[tuple[str, Any]]) -> int:
    """Returns the bytes of a request's tensors, once decoded.

    Args:
        limits: Of the server.
        inputs: Names and `TensorProto`s; not decoded here.

    Raises:
        StatusError: If they are too many.
    """
    total = 0
    for name, proto in inputs:
        total += tensors.claimed_bytes(proto)
        if total > limits.max_request_bytes:
            shape = [dim.size for dim in proto.tensor_shape.dim]
            raise invalid(
                f"a request must have at most {limits.max_request_bytes} "
                "bytes (`max_request_bytes`) once decoded. Received: "
                f"{name} of shape {shape[:8]}, {total} bytes so far"
            )
    return total


def check_rows(limits: Limits, inputs: Iterable[tuple[str, Any]]) -> None:
    """Checks the rows of a request to a certifier, before it is decoded.

    Raises:
        StatusError: If they are too many.
    """
    for name, proto in inputs:
        dims = proto.tensor_shape.dim
        if dims and dims[0].size > limits.max_rows:
            raise invalid(
                f"a request must have at most {limits.max_rows} rows "
                f"(`max_rows`). Received: {name} of {dims[0].size} rows"
            )


def check_draws(limits: Limits, draws: int) -> None:
    """Checks the draws of a row.

    Raises:
        StatusError: If they are too many.
    """
    if limits.max_draws is not None and draws > limits.max_draws:
        raise invalid(
            f"a row must have at most {limits.max_draws} draws "
            f"(`max_draws`). Received: {draws}"
        )


def check_cost(limits: Limits, seconds: float) -> None:
    """Checks the estimated time of a request.

    Raises:
        StatusError: If it is too long.
    """
    if seconds > limits.max_seconds:
        raise invalid(
            f"a request must take at most {limits.max_seconds:g} s "
            f"(`max_seconds`), and this one would take about {seconds:.0f}"
            " s: send fewer rows or draws at a time"
        )
