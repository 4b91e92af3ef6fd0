"""`rs-keras serve`: an export over gRPC."""

import argparse
import dataclasses
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

from rs_keras import serving
from rs_keras._checks import check_not_negative
from rs_keras.serving.event_log import LOGGER
from rs_keras.serving.event_log import JSONFormatter
from rs_keras.serving.server import model_config
from rs_keras.serving.server.metrics import PATH

_BINARY = "tensorflow_model_server"


def run(args: argparse.Namespace) -> int:
    """Runs tensorflow_model_server if installed, else the embedded server."""
    if (args.export_dir is None) == (args.config is None):
        raise ValueError("Either DIR or --config must be given.")
    # Checked now rather than when the server stops.
    check_not_negative("grace", args.grace)
    if args.config and (args.versions != "latest" or args.label):
        raise ValueError(
            "`--versions` and `--label` go with DIR; write them into the "
            f"--config. Received: --config {args.config}"
        )
    binary = None if args.embedded else shutil.which(_BINARY)
    if binary is not None:
        return _run_binary(binary, args)
    return _run_embedded(args)


def _run_embedded(args: argparse.Namespace) -> int:
    with _json_logs(args.verbose):
        server = serving.EmbeddedServer(
            args.export_dir,
            model_name=_model_name(args),
            config_file=args.config,
            host=args.host or "127.0.0.1",
            port=args.port,
            unix_socket=args.unix_socket,
            versions=_versions(args.versions),
            labels=_labels(args.label),
            poll_seconds=args.poll_seconds,
            config_poll_seconds=args.config_poll_seconds,
            max_concurrency=args.max_concurrency,
            tls=_tls(args),
            limits=_limits(args),
            rest_port=args.rest_port,
            allow_reload=args.allow_reload,
            allow_unavailable_labels=args.allow_unavailable_labels,
        ).start()
        try:
            stopped = _stop_event()
            _announce(server, args)
            # A signal delivered to another thread does not wake this one.
            while not stopped.wait(0.5):
                pass
            print(
                "Stopping: running requests are finished, new ones refused.",
                flush=True,
            )
        finally:
            server.stop(args.grace)
    return 0


def _announce(
    server: "serving.EmbeddedServer", args: argparse.Namespace
) -> None:
    served = ", ".join(
        f"{name} (version {', '.join(map(str, versions))})"
        for name, versions in server.models.items()
    )
    reason = "as asked" if args.embedded else f"as {_BINARY} is not on the PATH"
    print(
        f"Serving {served or 'no model yet'} on {server.address} with the "
        f"embedded server, {reason}: one Python process with TF Serving's "
        "gRPC API, for one machine. For more, run tensorflow_model_server on "
        "the same export.",
        flush=True,
    )


def _stop_event() -> threading.Event:
    """Returns an event that the first SIGTERM or Ctrl-C sets.

    The second ends the process.
    """
    stopped = threading.Event()

    def stop(number: int, frame: object) -> None:
        if stopped.is_set():
            os._exit(128 + number)
        stopped.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    return stopped


def _run_binary(binary: str, args: argparse.Namespace) -> int:
    command = [binary, *_binary_flags(args)]
    print(
        f"Serving with {binary}: TF Serving itself, on ALL interfaces of this "
        f"machine, port {args.port}.\n{' '.join(command)}",
        flush=True,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(binary, command)


def _binary_flags(args: argparse.Namespace) -> list[str]:
    """Returns the flags of tensorflow_model_server for these arguments."""
    if args.host not in (None, "0.0.0.0"):
        raise ValueError(
            f"`--host` must be 0.0.0.0: {_BINARY} listens on all interfaces. "
            f"Received: {args.host}; add --embedded to use it."
        )
    if not args.port:
        raise ValueError(
            f"`--port` must be a number for {_BINARY}. "
            f"Received: {args.port}; add --embedded for any free port."
        )
    for field in dataclasses.fields(serving.Limits):
        if getattr(args, field.name) is not None:
            flag = f"--{field.name.replace('_', '-')}"
            raise ValueError(
                f"`{flag}` is a limit of the embedded server; add --embedded "
                f"to use it. Received: {getattr(args, field.name)}"
            )
    # A long request holds up to two threads until it ends.
    requests = args.max_concurrency or 4 * (os.cpu_count() or 1)
    flags = [
        f"--port={args.port}",
        "--enable_grpc_healthcheck_service=true",
        f"--tensorflow_inter_op_parallelism={2 * requests}",
        f"--file_system_poll_wait_seconds={round(args.poll_seconds)}",
        *_model_flags(args),
    ]
    if args.unix_socket:
        flags.append(f"--grpc_socket_path={os.path.abspath(args.unix_socket)}")
    if args.max_concurrency:
        flags.append(f"--grpc_max_threads={args.max_concurrency}")
    if args.allow_unavailable_labels or args.label:
        flags.append("--allow_version_labels_for_unavailable_models=true")
    tls = _tls(args)
    if tls is not None:
        flags.append(f"--ssl_config_file={_saved('ssl', tls.text_proto())}")
    if args.rest_port:
        monitoring = f'prometheus_config {{ enable: true, path: "{PATH}" }}\n'
        flags += [
            f"--rest_api_port={args.rest_port}",
            f"--monitoring_config_file={_saved('monitoring', monitoring)}",
        ]
    return flags


def _model_flags(args: argparse.Namespace) -> list[str]:
    if args.config:
        flags = [f"--model_config_file={os.path.abspath(args.config)}"]
        if args.config_poll_seconds:
            seconds = max(1, round(args.config_poll_seconds))
            flags.append(f"--model_config_file_poll_wait_seconds={seconds}")
        return flags
    _require_versions(Path(args.export_dir))
    if args.versions == "latest" and not args.label:
        return [
            f"--model_name={_model_name(args)}",
            f"--model_base_path={os.path.abspath(args.export_dir)}",
        ]
    text = model_config.single(
        args.export_dir,
        _model_name(args),
        _versions(args.versions),
        _labels(args.label),
    )
    return [f"--model_config_file={_saved('models', str(text))}"]


def _require_versions(folder: Path) -> None:
    """Refuses a folder without versions, on which it would wait forever."""
    if any(child.name.isdigit() for child in folder.iterdir()):
        return
    raise ValueError(
        f"No versions found under {folder}. Did you forget to name your leaf "
        "directory as a number (eg. '/1/')?"
    )


def _saved(name: str, text: str) -> str:
    """Saves a config file that only this user can read; returns its path."""
    path = Path(tempfile.mkdtemp(prefix="rs-keras-serve-")) / f"{name}.pbtxt"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _model_name(args: argparse.Namespace) -> str:
    if args.model_name or args.export_dir is None:
        return str(args.model_name or "default")
    return Path(args.export_dir).resolve().name


def _versions(text: str) -> str | list[int]:
    if text in ("latest", "all"):
        return text
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise ValueError(
            "`--versions` must be latest, all, or numbers such as 1,2. "
            f"Received: {text}"
        ) from error


def _labels(pairs: Sequence[str]) -> dict[str, int]:
    labels = {}
    for pair in pairs:
        label, _, version = pair.rpartition("=")
        if not label or not version.isdecimal():
            raise ValueError(
                f"`--label` must be LABEL=VERSION. Received: {pair}"
            )
        labels[label] = int(version)
    return labels


def _limits(args: argparse.Namespace) -> "serving.Limits":
    given = {
        field.name: getattr(args, field.name)
        for field in dataclasses.fields(serving.Limits)
    }
    return serving.Limits(**{k: v for k, v in given.items() if v is not None})


def _tls(args: argparse.Namespace) -> "serving.TLS | None":
    if not (args.tls_key or args.tls_cert):
        if args.tls_ca or args.client_verify:
            raise ValueError(
                "`--tls-ca` and `--client-verify` need --tls-key and "
                "--tls-cert."
            )
        return None
    if not (args.tls_key and args.tls_cert):
        raise ValueError("`--tls-key` and `--tls-cert` need each other.")
    return serving.TLS(
        args.tls_key, args.tls_cert, args.tls_ca, args.client_verify
    )


@contextmanager
def _json_logs(verbose: bool) -> Iterator[None]:
    """Logs events to stderr, one JSON object per line."""
    handler = logging.StreamHandler()
    handler.setFormatter(JSONFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG if verbose else logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
