"""Errors with a gRPC status: a code and a message."""

from typing import Any

import grpc

# TF Serving cuts longer messages (model_servers/grpc_status_util.cc).
_LONGEST_MESSAGE = 1024

_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


class StatusError(Exception):
    """A request, a load or a configuration failed with a gRPC status.

    Args:
        name: Of the status code, such as "NOT_FOUND".
        message: What went wrong, in the words of TF Serving where it has them.

    Example:

    >>> from rs_keras.serving.server.grpc_errors import StatusError
    >>> str(StatusError("NOT_FOUND", "no such model"))
    'NOT_FOUND: no such model'
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(name, message)
        self.code = grpc.StatusCode[name]
        self.message = message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"

    @property
    def details(self) -> str:
        """The message as it is sent: at most 1024 bytes, then a mark."""
        encoded = self.message.encode("utf-8", "replace")
        if len(encoded) <= _LONGEST_MESSAGE:
            return encoded.decode("utf-8")
        cut = encoded[:_LONGEST_MESSAGE].decode("utf-8", "ignore")
        return cut + "...TRUNCATED"


def invalid(message: str) -> StatusError:
    """An INVALID_ARGUMENT with this message."""
    return StatusError("INVALID_ARGUMENT", message)


def from_tensorflow(error: Any) -> StatusError:
    """The same status for a `tf.errors.OpError`: the codes are numbered alike.

    Args:
        error: The `tf.errors.OpError`.

    Returns:
        Its code and its message, without the nodes Python adds to the latter.
    """
    name = _NAMES.get(error.error_code, "UNKNOWN")
    return StatusError(name, str(error.message))
