"""Loads, lends and unloads the models of a server."""

import logging
import os
import stat
import threading
import time
from collections.abc import Iterable
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rs_keras.serving.event_log import event
from rs_keras.serving.server import metrics as names
from rs_keras.serving.server import model_config
from rs_keras.serving.server.grpc_errors import StatusError
from rs_keras.serving.server.grpc_errors import invalid
from rs_keras.serving.server.metrics import Metrics
from rs_keras.serving.server.runtime import SessionModel
from rs_keras.serving.server.scheduling.worker import Worker
from rs_keras.serving.server.versions import State
from rs_keras.serving.server.versions import Version
from rs_keras.serving.server.versions import wanted_versions
from rs_keras.serving.server.warmup import warm_up


@dataclass(eq=False)
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

    metrics: Metrics
    run_warmup: bool = True
    load_retries: int = 5
    retry_seconds: float = 60.0
    allow_unavailable_labels: bool = False

    def __post_init__(self) -> None:
        # `_work` is held while models load, `_lock` only for an instant.
        self._work = threading.Lock()
        self._lock = threading.Lock()
        # The `ModelConfig`s in force, by name; replaced as a whole.
        self._configs: dict[str, Any] = {}
        self._versions: dict[str, dict[int, Version]] = {}
        # Also those that wait for their last request.
        self._loaded: set[Version] = set()
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
            before = self._configs
            model_config.check(config, before.values())
            if check_labels:
                self._check_labels(config)
            # A copy: the caller may change its own.
            copy = type(config).FromString(config.SerializeToString())
            self._configs = {model.name: model for model in copy.config}
            for name in before.keys() - self._configs.keys():
                self._settle(name, {})
            for name, model in self._configs.items():
                self._refresh(model, self.load_retries if name in before else 0)
            self._require_available(self._configs.keys() - before.keys())

    def poll(self) -> None:
        """Looks at the disk once: loads what is new, unloads what is gone."""
        with self._work:
            for model in self._configs.values():
                self._refresh(model, self.load_retries)

    @contextmanager
    def use(self, spec: Any) -> Iterator[tuple[int, Worker]]:
        """Lends the version a `ModelSpec` means, for one request.

        Args:
            spec: Name, and a version, a label or neither (the latest).

        Yields:
            Its number and its worker, loaded until the block ends.

        Raises:
            StatusError: INVALID_ARGUMENT without a name or for an unknown
                label, NOT_FOUND for anything that is not being served.
        """
        with self._lock:
            version = self._resolve(spec)
            version.users += 1
        try:
            yield version.number, version.worker
        finally:
            with self._lock:
                version.users -= 1
                last = version.users == 0 and version.state == State.UNLOADING
            if last:
                self._free(version)

    def states(self, name: str) -> list[Version]:
        """Returns a model's versions, also those that ended, latest first."""
        with self._lock:
            versions = self._versions.get(name, {})
            return [versions[number] for number in sorted(versions)[::-1]]

    def available(self) -> dict[str, list[int]]:
        """Returns the versions that serve, latest first, by model."""
        return {
            name: [v.number for v in self.states(name) if v.serves]
            for name in list(self._versions)
        }

    def close(self) -> None:
        """Unloads everything; what still runs ends with CANCELLED."""
        with self._work:
            for name in self._configs:
                self._settle(name, {})
            self._configs = {}
            # Under the lock, so that none is freed in between.
            with self._lock:
                for version in self._loaded:
                    version.worker.model.cancel()

    def _resolve(self, spec: Any) -> Version:
        if not spec.name:
            raise invalid("ModelSpec has no name specified.")
        versions = self._versions.get(spec.name, {})
        choice = spec.WhichOneof("version_choice")
        wanted, numbers = f"Latest({spec.name})", sorted(versions)[::-1]
        if choice is not None:
            number = spec.version.value
            if choice == "version_label":
                label, labels = spec.version_label, self._labels(spec.name)
                if label not in labels:
                    raise invalid(
                        f"Unrecognized servable version label: {label}"
                    )
                number = labels[label]
            wanted, numbers = f"Specific({spec.name}, {number})", [number]
        for number in numbers:
            if number in versions and versions[number].serves:
                return versions[number]
        raise StatusError(
            "NOT_FOUND", f"Servable not found for request: {wanted}"
        )

    def _labels(self, name: str) -> dict[str, int]:
        config = self._configs.get(name)
        return {} if config is None else dict(config.version_labels)

    def _check_labels(self, config: Any) -> None:
        for model in config.config:
            before = self._labels(model.name)
            versions = self._versions.get(model.name, {})
            for label, number in sorted(model.version_labels.items()):
                if number in versions and versions[number].serves:
                    continue
                moves = before.get(label, number) != number
                if moves or not self.allow_unavailable_labels:
                    raise StatusError(
                        "FAILED_PRECONDITION",
                        f"Request to assign label to version {number} of "
                        f"model {model.name}, which is not currently "
                        "available for inference",
                    )

    def _refresh(self, config: Any, retries: int) -> None:
        """Brings one model to what its policy and the disk ask for."""
        name, path = config.name, config.base_path
        wanted = wanted_versions(config)
        complaint = ""
        if wanted is None:
            complaint = f"Could not find base path {path} for servable {name}"
        elif not wanted:
            complaint = (
                f"No versions of servable {name} found under base path {path}. "
                "Did you forget to name your leaf directory as a number "
                "(eg. '/1/')?"
            )
        # Once, not at every poll.
        if complaint and self._complaints.get(name) != complaint:
            event(logging.WARNING, "no_versions", model=name, error=complaint)
        self._complaints[name] = complaint
        if wanted is None:
            # It may come back (a network file system): what serves, stays.
            return
        versions = self._versions.get(name, {})
        for number in sorted(wanted, reverse=True):
            version = versions.get(number)
            # One that is leaving is loaded afresh: it may take long to leave.
            if version is None or not version.wanted:
                version = Version(name, number, wanted[number])
                with self._lock:
                    self._versions.setdefault(name, {})[number] = version
            elif version.state != State.LOADING or (
                time.monotonic() < version.retry_at
            ):
                continue
            self._load(version, retries)
        self._settle(name, wanted)

    def _settle(self, name: str, wanted: dict[int, str]) -> None:
        """Unloads what is no longer wanted, once a wanted version serves."""
        leaving = []
        with self._lock:
            versions = list(self._versions.get(name, {}).values())
            serving = any(
                version.serves and version.number in wanted
                for version in versions
            )
            for version in versions:
                if version.number in wanted or (wanted and not serving):
                    continue
                version.wanted = False
                if version.serves:
                    version.state = State.UNLOADING
                    leaving.append((version, version.users == 0))
                elif version.state == State.LOADING:
                    version.state = State.END
        for version, unused in leaving:
            _log(logging.INFO, "version_unloading", version)
            if unused:
                self._free(version)

    def _load(self, version: Version, retries: int) -> None:
        version.state = State.LOADING
        start = time.monotonic()
        try:
            worker = Worker(self._load_model(version.directory))
        except Exception as error:
            # Whatever an export holds, the server goes on.
            if not isinstance(error, StatusError):
                error = StatusError("UNKNOWN", repr(error))
            with self._lock:
                version.error = error
                version.attempts += 1
                version.retry_at = time.monotonic() + self.retry_seconds
                if version.attempts > retries:
                    version.state = State.END
            fields = {"attempt": version.attempts, "error": str(error)}
            _log(logging.ERROR, "version_failed", version, **fields)
            return
        with self._lock:
            version.worker = worker
            version.error = None
            version.state = State.AVAILABLE
            self._loaded.add(version)
        seconds = round(time.monotonic() - start, 3)
        _log(logging.INFO, "version_available", version, seconds=seconds)
        if worker.export is not None and _others_read(version.directory):
            _log(
                logging.WARNING,
                "secret_readable",
                version,
                advice="every user of this machine can read the secret of its "
                "seeds: chmod -R o= " + version.directory,
            )

    def _load_model(self, directory: str) -> SessionModel:
        try:
            model = SessionModel(directory)
        except StatusError:
            self.metrics.count(names.LOAD_ATTEMPTS, directory, names.FAILED)
            raise
        self.metrics.count(names.LOAD_ATTEMPTS, directory, names.LOADED)
        start = time.monotonic()
        try:
            count = warm_up(model, directory) if self.run_warmup else 0
        except Exception:
            model.close()
            raise
        if count:
            seconds = time.monotonic() - start
            self.metrics.observe(names.WARMUP_LATENCY, seconds, directory, "OK")
        return model

    def _free(self, version: Version) -> None:
        with self._lock:
            worker, version.worker = version.worker, None
            version.state = State.END
            self._loaded.discard(version)
        worker.model.close()

    def _require_available(self, model_names: Iterable[str]) -> None:
        failures = []
        for name in sorted(model_names):
            versions = self.states(name)
            if any(version.serves for version in versions):
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
                "UNKNOWN",
                f"{len(failures)} model(s) did not become available: "
                f"{{{listed}}}",
            )


def _others_read(directory: str) -> bool:
    """Whether the graph of a version is open to all users, on a local disk."""
    try:
        mode = os.stat(os.path.join(directory, "saved_model.pb")).st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IROTH)


def _log(level: int, name: str, version: Version, **fields: Any) -> None:
    event(
        level, name, model=version.model_name, version=version.number, **fields
    )
