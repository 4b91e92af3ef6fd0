"""What a failed request means, and whether it may be sent again.

Every request is a question: nothing on the server changes, and an answer that
never came was never looked at. So a request may be sent again whenever the
next attempt can end otherwise. A chunk of draws is addressed by its seed and
numbers: sent again, it is the same chunk.
"""

from enum import Enum

import grpc

# What TF Serving puts behind a message that it has cut.
_CUT = "...TRUNCATED"
# What it says of a version that it has unloaded, or never had.
_NO_SERVABLE = "Servable not found for request"

_Code = grpc.StatusCode


class Kind(Enum):
    """What to do about a failure.

    Attributes:
        AWAY: The connection or the server is gone; again, with pauses, once
            the server says that it still serves the same model.
        BUSY: The server turns requests away; again, with pauses.
        SLOW: The deadline passed; again, in smaller chunks.
        GONE: The server no longer has this version.
        FINAL: The next attempt would end alike.
    """

    AWAY = "away"
    BUSY = "busy"
    SLOW = "slow"
    GONE = "gone"
    FINAL = "final"


class ServingError(OSError):
    """A server, or all of them, did not answer what was asked.

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
    """What came is no answer that an export of rs-keras gives."""


class OtherExport(ServingError):
    """An answer by an export that is not the one that was described."""


def kind_of(code: grpc.StatusCode, details: str) -> Kind:
    """Says what to do about a request that failed."""
    if code is _Code.RESOURCE_EXHAUSTED:
        # A message that is too long stays too long.
        return Kind.FINAL if "larger than max" in details else Kind.BUSY
    if code is _Code.DEADLINE_EXCEEDED:
        return Kind.SLOW
    if code is _Code.NOT_FOUND and _NO_SERVABLE in details:
        return Kind.GONE
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
    _Code.UNAUTHENTICATED: "does it want a client certificate (`tls`)?",
    _Code.PERMISSION_DENIED: "does it want a client certificate (`tls`)?",
}


def describe_failure(server: str, code: grpc.StatusCode, details: str) -> str:
    """Says in one sentence what a server answered, and what may help."""
    details = details.strip()
    if details.endswith(_CUT):
        details = f"{details.removesuffix(_CUT)} [cut by the server]"
    advice = _ADVICE.get(code)
    hint = f"; {advice}" if advice else ""
    return f"{server}: {code.name}: {details or 'no details'}{hint}"
