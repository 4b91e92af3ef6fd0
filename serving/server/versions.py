"""Versions of a model: those in its folder, and their states."""

import re
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow_serving.apis import get_model_status_pb2

from rs_keras.serving.server.grpc_errors import StatusError

State = get_model_status_pb2.ModelVersionStatus.State

_VERSION = re.compile(r"[0-9]+", re.ASCII)
_LARGEST = 2**63 - 1


@dataclass(eq=False)
class Version:
    """One version of a model, from the moment it was seen to its end.

    Attributes:
        model_name: The model's name.
        number: The version's number.
        directory: Where its SavedModel lies.
        state: One of `State`.
        error: Why it could not be loaded.
        worker: The `Worker` with its model, while it is loaded.
        users: Requests that hold it; it is freed when the last one leaves.
        wanted: Whether the version policy still asks for it.
        attempts: Failed loads so far.
        retry_at: When to try again (monotonic seconds).
    """

    model_name: str
    number: int
    directory: str
    state: int = State.START
    error: StatusError | None = None
    worker: Any = None
    users: int = 0
    wanted: bool = True
    attempts: int = 0
    retry_at: float = 0.0

    @property
    def serves(self) -> bool:
        """Whether it answers requests."""
        return self.state == State.AVAILABLE


def wanted_versions(config: Any) -> dict[int, str] | None:
    """Lists the versions on the disk that a model's version policy asks for.

    Args:
        config: A `ModelConfig`; without a policy, the latest version is wanted.

    Returns:
        Folders by version number; `None` if the base path cannot be listed.
    """
    try:
        if not tf.io.gfile.isdir(config.base_path):
            return None
        children = tf.io.gfile.listdir(config.base_path)
    except tf.errors.OpError:
        return None
    offered = {}
    # `1` and `001` are the same version; the last in this order counts.
    for child in sorted(name.rstrip("/") for name in children):
        if _VERSION.fullmatch(child) and int(child) <= _LARGEST:
            offered[int(child)] = tf.io.gfile.join(config.base_path, child)
    policy = config.model_version_policy
    numbers = sorted(offered)
    kind = policy.WhichOneof("policy_choice")
    if kind == "specific":
        numbers = [n for n in numbers if n in policy.specific.versions]
    elif kind != "all":
        numbers = numbers[-max(1, policy.latest.num_versions) :]
    return {number: offered[number] for number in numbers}
