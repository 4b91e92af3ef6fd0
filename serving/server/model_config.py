"""Model configurations: TF Serving's text format and the rules it applies."""

import os
import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from rs_keras.serving.server.grpc_errors import invalid

PLATFORM = "tensorflow"
_URI = re.compile(r"[a-z][a-z0-9+.-]*://")

Versions = str | int | Sequence[int]


def read(path: str | os.PathLike[str]) -> Any:
    """Reads a model config file: a `ModelServerConfig` in text format.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it does not parse, with the line and column, or lists no
            models.

    Example:

    >>> from pathlib import Path
    >>> from rs_keras.serving.server.model_config import read
    >>> size = Path("models.config").write_text("model_config_list {}")
    >>> read("models.config").WhichOneof("config")
    'model_config_list'
    """
    text = Path(path).read_text(encoding="utf-8")
    config = model_server_config_pb2.ModelServerConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        raise ValueError(
            f"Invalid protobuf file: '{path}': Error parsing text-format "
            f"tensorflow.serving.ModelServerConfig: {error}"
        ) from error
    if config.WhichOneof("config") != "model_config_list":
        raise ValueError(
            f"Invalid protobuf file: '{path}': `model_config_list` is wanted. "
            f"Received: {config.WhichOneof('config')}"
        )
    return config


def single(
    export_dir: str | os.PathLike[str],
    model_name: str,
    versions: Versions = "latest",
    labels: Mapping[str, int] | None = None,
) -> Any:
    """Builds the configuration of one model.

    Args:
        export_dir: The folder that holds `1/`, `2/`, ...
        model_name: The name clients ask for.
        versions: `"latest"`, `"all"`, a number n >= 1 (the n latest), or a
            list of version numbers.
        labels: Version numbers by label.

    Returns:
        The `ModelServerConfig`.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> from rs_keras.serving.server.model_config import single
    >>> config = single("/models/mnist", "mnist", versions=[1, 2])
    >>> list(config.model_config_list.config[0]
    ...     .model_version_policy.specific.versions)
    [1, 2]
    """
    if not isinstance(model_name, str) or not model_name:
        raise ValueError(
            f"`model_name` must be a word. Received: model_name={model_name!r}"
        )
    config = model_server_config_pb2.ModelServerConfig()
    model = config.model_config_list.config.add()
    model.name = model_name
    path = os.fspath(export_dir)
    model.base_path = path if _is_absolute(path) else os.path.abspath(path)
    model.model_platform = PLATFORM
    _set_policy(model.model_version_policy, versions)
    for label, version in (labels or {}).items():
        model.version_labels[label] = version
    return config


def check(new: Any, old: Iterable[Any]) -> None:
    """Applies TF Serving's rules to a new `ModelConfigList`.

    Args:
        new: The list wanted.
        old: The `ModelConfig`s in force.

    Raises:
        StatusError: INVALID_ARGUMENT for a name listed twice, a relative
            path, a missing, unknown or changed platform.
    """
    names: set[str] = set()
    for model in new.config:
        if model.name in names:
            raise invalid(
                f"Illegal to list model {model.name} multiple times in config "
                "list"
            )
        names.add(model.name)
    for model in new.config:
        if not _is_absolute(model.base_path):
            raise invalid(
                f"Expected model {model.name} to have an absolute path or "
                f"URI; got base_path()={model.base_path}"
            )
    platforms = {model.name: _platform(model) for model in old}
    for model in new.config:
        platform = _platform(model)
        before = platforms.get(model.name, platform)
        if platform != before:
            raise invalid(
                "Illegal to change a model's platform. For model "
                f"{model.name} platform was {before} and new platform "
                f"requested is {platform}"
            )
    for model in new.config:
        if _platform(model) != PLATFORM:
            raise invalid(
                f"Model {model.name} requests unsupported platform "
                f"{_platform(model)}"
            )


def _platform(model: Any) -> str:
    kinds = model_server_config_pb2.ModelType
    if model.model_type != kinds.MODEL_TYPE_UNSPECIFIED:
        if model.model_platform:
            raise invalid(
                "Illegal setting both ModelServerConfig::model_type "
                "(deprecated) and ModelServerConfig::model_platform."
            )
        if model.model_type != kinds.TENSORFLOW:
            raise invalid(
                f"ModelServerConfig::model_type {model.model_type} "
                "not supported."
            )
        return PLATFORM
    if not model.model_platform:
        raise invalid(
            "Illegal setting neither ModelServerConfig::model_type "
            "(deprecated) nor ModelServerConfig::model_platform, model name "
            f"is {model.name}"
        )
    return str(model.model_platform)


def _set_policy(policy: Any, versions: Versions) -> None:
    numbers = [] if isinstance(versions, str | int) else list(versions or ())
    if versions == "all":
        policy.all.SetInParent()
    elif versions == "latest":
        policy.latest.num_versions = 1
    elif type(versions) is int and versions >= 1:
        policy.latest.num_versions = versions
    elif numbers and all(isinstance(number, int) for number in numbers):
        policy.specific.versions.extend(numbers)
    else:
        raise ValueError(
            '`versions` must be "latest", "all", a number >= 1 or a list of '
            f"version numbers. Received: versions={versions!r}"
        )


def _is_absolute(path: str) -> bool:
    return os.path.isabs(path) or bool(_URI.match(path))
