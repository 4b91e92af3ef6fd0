"""Errors of requests, and which requests may be retried.

Requests change nothing on the server, and a lost response was never used. A
request may therefore be retried whenever a retry can succeed. A chunk of draws
is addressed by its seed and numbers: a retried chunk is the same chunk.
"""

from enum import Enum

import grpc

# The suffix of messages that TF Serving has truncated.
_CUT = "...TRUNCATED"
# TF Serving's message for a version that is not loaded.
_NO_SERVABLE = "Servable not found for request"

_Code = grpc.StatusCode


class Kind(Enum):
    """The kind of a failure, which determines the retry.

    Attributes:
        AWAY: The connection was lost; retry with pauses, after the server
            has described the same model again.
        BUSY: The server rejects requests; retry with pauses.
        SLOW: The deadline passed; retry in smaller chunks.
        VERSION_UNAVAILABLE: The server no longer has this version.
        FINAL: A retry would fail in the same way.
    """

    AWAY = "away"
    BUSY = "busy"
    SLOW = "slow"
    VERSION_UNAVAILABLE = "version_unavailable"
    FINAL = "final"


class ServingError(OSError):
    """One server, or all of them, failed to answer a request.

    Attributes:
        code: The gRPC status code; None where no server answered.
        server: The address; None where it is about several.
        details: The server's own words.

    Example:

    >>> from rs_keras.serving.errors import ServingError
    >>> str(ServingError("a:8500 is away", server="a:8500"))
    'a:8500 is away'
    """

    def __init__(
        self,
        message: str,
        code: grpc.StatusCode | None = None,
        server: str | None = None,
        details: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.server = server
        self.details = details


class WrongAnswer(ServingError):
    """A response that no export of rs-keras gives."""


class OtherExport(ServingError):
    """A response of another export than the server described."""


def kind_of(code: grpc.StatusCode, details: str) -> Kind:
    """Returns the kind of a failure."""
    if code is _Code.RESOURCE_EXHAUSTED:
        # A retried message would be too long again.
        return Kind.FINAL if "larger than max" in details else Kind.BUSY
    if code is _Code.DEADLINE_EXCEEDED:
        return Kind.SLOW
    if code is _Code.NOT_FOUND and _NO_SERVABLE in details:
        return Kind.VERSION_UNAVAILABLE
    dropped = "RST_STREAM" in details or "Stream removed" in details
    if code in (_Code.UNAVAILABLE, _Code.CANCELLED) or (
        code in (_Code.INTERNAL, _Code.UNKNOWN) and dropped
    ):
        return Kind.AWAY
    return Kind.FINAL


_ADVICE = {
    _Code.UNAVAILABLE: "is it running, and is this its gRPC port (8500 unless "
    "told; 8501 is REST)?",
    _Code.RESOURCE_EXHAUSTED: "it has more requests than threads; send fewer "
    "at a time or add servers",
    _Code.DEADLINE_EXCEEDED: "raise `timeout`, or give `n` and `chunk`, which "
    "cuts the work into short requests",
    _Code.NOT_FOUND: "is `model_name` the name that the server gives it?",
    _Code.FAILED_PRECONDITION: "is the model an export of rs-keras?",
    _Code.UNIMPLEMENTED: "is this the gRPC port of TF Serving?",
    _Code.UNAUTHENTICATED: "does it want a `token`, or a client certificate "
    "(`tls`)?",
    _Code.PERMISSION_DENIED: "does it want another `token`, or a client "
    "certificate (`tls`)?",
}


def describe_failure(server: str, code: grpc.StatusCode, details: str) -> str:
    """Describes a failure and a possible remedy in one sentence."""
    details = details.strip()
    if details.endswith(_CUT):
        details = f"{details.removesuffix(_CUT)} [cut by the server]"
    advice = _ADVICE.get(code)
    hint = f"; {advice}" if advice else ""
    return f"{server}: {code.name}: {details or 'no details'}{hint}"
