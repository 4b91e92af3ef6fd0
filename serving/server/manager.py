"""Loads, holds and unloads the models of a server."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from tensorflow_serving.config import model_server_config_pb2

from rs_keras.serving.event_log import event
from rs_keras.serving.server import metrics as names
from rs_keras.serving.server import model_config as configs
from rs_keras.serving.server.metrics import Metrics
from rs_keras.serving.server.runtime import SessionModel
from rs_keras.serving.server.status import StatusError
from rs_keras.serving.server.status import invalid
from rs_keras.serving.server.versions import State
from rs_keras.serving.server.versions import Version
from rs_keras.serving.server.versions import choose
from rs_keras.serving.server.versions import offered
from rs_keras.serving.server.warmup import warm_up


class ModelManager:
    """Keeps the versions loaded that the configuration and the disk ask for.

    A new version is loaded and warmed up before the old one leaves; a version
    that requests still use is freed when the last of them is answered.

    Args:
        metrics: Where loads and warm-ups are counted.
        run_warmup: Whether to run the warm-up requests of an export.
        load_retries: How often a version that appears later is tried again.
        retry_seconds: The pause in between.
        allow_unavailable_labels: Whether a label may name a version that is
            not loaded, as long as it does not move an existing label.
    """

    def __init__(
        self,
        metrics: Metrics,
        run_warmup: bool = True,
        load_retries: int = 5,
        retry_seconds: float = 60.0,
        allow_unavailable_labels: bool = False,
    ) -> None:
        self._metrics = metrics
        self._run_warmup = run_warmup
        self._load_retries = load_retries
        self._retry_seconds = retry_seconds
        self._allow_unavailable_labels = allow_unavailable_labels
        # `_work` is held while models load, `_lock` only for an instant.
        self._work = threading.Lock()
        self._lock = threading.Lock()
        self._config = model_server_config_pb2.ModelConfigList()
        self._versions: dict[str, dict[int, Version]] = {}
        # Also those that wait for their last request.
        self._loaded: set[Version] = set()
        self._labels: dict[str, dict[str, int]] = {}
        self._complaints: dict[str, str] = {}

    def apply(self, config: Any, check_labels: bool = True) -> None:
        """Takes over a `ModelConfigList`; returns when new models serve.

        Args:
            config: The models wanted; those left out are unloaded.
            check_labels: Whether labels must name versions that serve.

        Raises:
            StatusError: For a configuration that breaks a rule (nothing is
                changed then), or a new model that does not load.
        """
        with self._work:
            configs.check(config, self._config)
            if check_labels:
                self._check_labels(config)
            labels = {
                model.name: dict(model.version_labels)
                for model in config.config
            }
            before = {model.name for model in self._config.config}
            self._config.CopyFrom(config)
            with self._lock:
                self._labels = labels
            listed = {model.name for model in config.config}
            for name in before - listed:
                self._settle(name, {})
            for model in config.config:
                new = model.name not in before
                self._refresh(model, 0 if new else self._load_retries)
            self._require_available(listed - before)

    def poll(self) -> None:
        """Looks at the disk once: loads what is new, unloads what is gone."""
        with self._work:
            for model in self._config.config:
                self._refresh(model, self._load_retries)

    @contextmanager
    def use(self, spec: Any) -> Iterator[tuple[int, SessionModel]]:
        """Lends the version a `ModelSpec` means, for one request.

        Args:
            spec: Name, and a version, a label or neither (the latest).

        Yields:
            Its number and its model, which stays loaded until the block ends.

        Raises:
            StatusError: INVALID_ARGUMENT without a name or for an unknown
                label, NOT_FOUND for anything that is not being served.
        """
        with self._lock:
            version, model = self._resolve(spec)
            version.users += 1
        try:
            yield version.number, model
        finally:
            with self._lock:
                version.users -= 1
                last = version.users == 0 and version.state == State.UNLOADING
            if last:
                self._free(version)

    def known(self, name: str) -> bool:
        """Whether there is, or was, a version of this model."""
        with self._lock:
            return bool(self._versions.get(name))

    def states(self, name: str) -> list[Version]:
        """The versions of a model, also those that ended, latest first."""
        with self._lock:
            versions = self._versions.get(name, {})
            return [versions[number] for number in sorted(versions)[::-1]]

    def available(self) -> dict[str, list[int]]:
        """The numbers of the versions that serve, latest first, by model."""
        with self._lock:
            return {
                name: [
                    number
                    for number in sorted(versions)[::-1]
                    if versions[number].state == State.AVAILABLE
                ]
                for name, versions in self._versions.items()
            }

    def close(self) -> None:
        """Unloads everything; what still runs ends with CANCELLED."""
        with self._work:
            for config in self._config.config:
                self._settle(config.name, {})
            self._config.Clear()
            # Under the lock, so that none is freed in between.
            with self._lock:
                for version in self._loaded:
                    if version.model is not None:
                        version.model.cancel()

    def _resolve(self, spec: Any) -> tuple[Version, SessionModel]:
        if not spec.name:
            raise invalid("ModelSpec has no name specified.")
        versions = self._versions.get(spec.name, {})
        choice = spec.WhichOneof("version_choice")
        if choice is None:
            wanted = f"Latest({spec.name})"
            numbers = sorted(versions)[::-1]
        else:
            number = (
                spec.version.value
                if choice == "version"
                else self._labelled(spec.name, spec.version_label)
            )
            wanted = f"Specific({spec.name}, {number})"
            numbers = [number] if number in versions else []
        for number in numbers:
            version = versions[number]
            if version.state == State.AVAILABLE and version.model is not None:
                return version, version.model
        raise StatusError(
            grpc.StatusCode.NOT_FOUND,
            f"Servable not found for request: {wanted}",
        )

    def _labelled(self, name: str, label: str) -> int:
        labels = self._labels.get(name, {})
        if label not in labels:
            raise invalid(f"Unrecognized servable version label: {label}")
        return labels[label]

    def _check_labels(self, config: Any) -> None:
        for model in config.config:
            for label, number in sorted(model.version_labels.items()):
                if not self._may_label(model.name, label, number):
                    raise StatusError(
                        grpc.StatusCode.FAILED_PRECONDITION,
                        f"Request to assign label to version {number} of "
                        f"model {model.name}, which is not currently "
                        "available for inference",
                    )

    def _may_label(self, name: str, label: str, number: int) -> bool:
        version = self._versions.get(name, {}).get(number)
        if version is not None and version.state == State.AVAILABLE:
            return True
        moves = self._labels.get(name, {}).get(label, number) != number
        return self._allow_unavailable_labels and not moves

    def _refresh(self, model: Any, retries: int) -> None:
        """Brings one model to what its policy and the disk ask for."""
        found = offered(model.base_path)
        if found is None:
            self._complain(
                model.name,
                f"Could not find base path {model.base_path} for servable "
                f"{model.name}",
            )
            # It may come back (a network file system): what serves, stays.
            return
        wanted = choose(found, model.model_version_policy)
        self._complain(model.name, "" if wanted else _no_versions(model))
        versions = self._versions.get(model.name, {})
        for number in sorted(wanted, reverse=True):
            version = versions.get(number)
            # One that is leaving is loaded afresh: it may take long to leave.
            if version is None or not version.wanted:
                version = Version(number, wanted[number])
                with self._lock:
                    self._versions.setdefault(model.name, {})[number] = version
                self._load(model.name, version, retries)
            elif version.state == State.LOADING and (
                time.monotonic() >= version.retry_at
            ):
                self._load(model.name, version, retries)
        self._settle(model.name, wanted)

    def _settle(self, name: str, wanted: dict[int, str]) -> None:
        """Unloads what is no longer wanted, once a wanted version serves."""
        with self._lock:
            versions = list(self._versions.get(name, {}).values())
            serving = any(
                version.state == State.AVAILABLE and version.number in wanted
                for version in versions
            )
            leaving = []
            for version in versions:
                if version.number in wanted or (wanted and not serving):
                    continue
                version.wanted = False
                if version.state == State.AVAILABLE:
                    version.state = State.UNLOADING
                    leaving.append((version, version.users == 0))
                elif version.state == State.LOADING:
                    version.state = State.END
        for version, unused in leaving:
            event(
                logging.INFO,
                "version_unloading",
                model=name,
                version=version.number,
            )
            if unused:
                self._free(version)

    def _load(self, name: str, version: Version, retries: int) -> None:
        version.state = State.LOADING
        start = time.monotonic()
        try:
            model = self._load_model(version.directory)
        except StatusError as error:
            self._fail(name, version, error, retries)
        except Exception as error:
            # Whatever an export holds, the server goes on.
            failure = StatusError(grpc.StatusCode.UNKNOWN, repr(error))
            self._fail(name, version, failure, retries)
        else:
            with self._lock:
                version.model = model
                version.error = None
                version.state = State.AVAILABLE
                self._loaded.add(version)
            event(
                logging.INFO,
                "version_available",
                model=name,
                version=version.number,
                seconds=round(time.monotonic() - start, 3),
            )

    def _load_model(self, directory: str) -> SessionModel:
        try:
            model = SessionModel(directory)
        except StatusError as error:
            self._metrics.count(names.LOAD_ATTEMPTS, directory, error.code.name)
            raise
        self._metrics.count(names.LOAD_ATTEMPTS, directory, "OK")
        if self._run_warmup:
            start = time.monotonic()
            try:
                count = warm_up(model, directory)
            except Exception:
                model.close()
                raise
            if count:
                self._metrics.observe(
                    names.WARMUP_LATENCY,
                    time.monotonic() - start,
                    directory,
                    "OK",
                )
        return model

    def _fail(
        self, name: str, version: Version, error: StatusError, retries: int
    ) -> None:
        with self._lock:
            version.error = error
            version.attempts += 1
            version.retry_at = time.monotonic() + self._retry_seconds
            if version.attempts > retries:
                version.state = State.END
        event(
            logging.ERROR,
            "version_failed",
            model=name,
            version=version.number,
            attempt=version.attempts,
            error=str(error),
        )

    def _free(self, version: Version) -> None:
        with self._lock:
            model, version.model = version.model, None
            version.state = State.END
            self._loaded.discard(version)
        if model is not None:
            model.close()

    def _complain(self, name: str, complaint: str) -> None:
        """Logs a complaint when it is new, not at every poll."""
        if complaint and self._complaints.get(name) != complaint:
            event(logging.WARNING, "no_versions", model=name, error=complaint)
        self._complaints[name] = complaint

    def _require_available(self, names_wanted: set[str]) -> None:
        failures = []
        for name in sorted(names_wanted):
            versions = self.states(name)
            if any(version.state == State.AVAILABLE for version in versions):
                continue
            failures += [
                f"{{name: {name} version: {version.number}}}"
                f" due to error: {version.error}"
                for version in versions
                if version.error
            ] or [f"{{name: {name}}} due to error: {self._complaints[name]}"]
        if failures:
            # The braces do not match; TF Serving's do not either.
            listed = "".join(f"{failure}}}, " for failure in failures)
            raise StatusError(
                grpc.StatusCode.UNKNOWN,
                f"{len(failures)} model(s) did not become available: "
                f"{{{listed}}}",
            )


def _no_versions(model: Any) -> str:
    return (
        f"No versions of servable {model.name} found under base path "
        f"{model.base_path}. Did you forget to name your leaf directory as a "
        "number (eg. '/1/')?"
    )
