"""Which versions of a model a folder offers, and what becomes of each."""

import re
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow_serving.apis import get_model_status_pb2

from rs_keras.serving.server.runtime import SessionModel
from rs_keras.serving.server.status import StatusError

State = get_model_status_pb2.ModelVersionStatus.State

_VERSION = re.compile(r"[0-9]+", re.ASCII)
_LARGEST = 2**63 - 1


@dataclass(eq=False)
class Version:
    """One version of a model, from the moment it was seen to its end.

    Attributes:
        number: Of the version.
        directory: Where its SavedModel lies.
        state: One of `State`.
        error: Why it could not be loaded.
        model: What runs it, while it is loaded.
        users: Requests that hold it; it is freed when the last one leaves.
        wanted: Whether the version policy still asks for it.
        attempts: Failed loads so far.
        retry_at: When to try again (monotonic seconds).
    """

    number: int
    directory: str
    state: int = State.START
    error: StatusError | None = None
    model: SessionModel | None = None
    users: int = 0
    wanted: bool = True
    attempts: int = 0
    retry_at: float = 0.0


def offered(base_path: str) -> dict[int, str] | None:
    """Lists the version folders under a base path.

    Args:
        base_path: The folder that holds `1/`, `2/`, ...

    Returns:
        Folders by version number; `None` if `base_path` cannot be listed.
    """
    try:
        if not tf.io.gfile.isdir(base_path):
            return None
        children = tf.io.gfile.listdir(base_path)
    except tf.errors.OpError:
        return None
    found = {}
    # `1` and `001` are the same version; the last in this order counts.
    for child in sorted(name.rstrip("/") for name in children):
        if _VERSION.fullmatch(child) and int(child) <= _LARGEST:
            found[int(child)] = tf.io.gfile.join(base_path, child)
    return found


def choose(found: dict[int, str], policy: Any) -> dict[int, str]:
    """Applies a version policy.

    Args:
        found: Folders by version number.
        policy: A `ServableVersionPolicy`; unset means the latest one.

    Returns:
        The part of `found` to serve.
    """
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return dict(found)
    if kind == "specific":
        wanted = set(policy.specific.versions)
        return {number: found[number] for number in found if number in wanted}
    count = max(1, policy.latest.num_versions)
    return {number: found[number] for number in sorted(found)[-count:]}
