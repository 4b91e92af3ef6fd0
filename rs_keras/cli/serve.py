"""Serves an export over gRPC.

rs-keras serve exports/mnist --port 8500
"""

import argparse
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
from typing import Any

HELP = "serves an export over gRPC"
EXAMPLE = "rs-keras serve exports/mnist --port 8500"

_BINARY = "tensorflow_model_server"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's flags."""
    parser.add_argument(
        "export_dir",
        nargs="?",
        metavar="DIR",
        help="the folder that holds 1/, 2/, ...",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="instead of DIR: TF Serving's model config file",
    )
    parser.add_argument(
        "--model-name", metavar="NAME", help="default: the name of DIR"
    )
    parser.add_argument(
        "--host",
        help="the interface to listen on, 0.0.0.0 for all "
        "(default: 127.0.0.1; tensorflow_model_server always takes all)",
    )
    parser.add_argument(
        "--port", type=int, default=8500, help="default: 8500; 0 for any"
    )
    parser.add_argument(
        "--unix-socket", metavar="PATH", help="a socket to listen on as well"
    )
    parser.add_argument(
        "--versions",
        metavar="WHICH",
        default="latest",
        help="latest (default), all, or numbers such as 1,2",
    )
    parser.add_argument(
        "--label",
        metavar="LABEL=VERSION",
        action="append",
        default=[],
        help="such as stable=1; may be repeated",
    )
    parser.add_argument(
        "--poll-seconds",
        type=float,
        default=1.0,
        metavar="S",
        help="how often to look for new versions (default: 1; 0 never)",
    )
    parser.add_argument(
        "--config-poll-seconds",
        type=float,
        default=0.0,
        metavar="S",
        help="how often to read --config again (default: 0, never)",
    )
    parser.add_argument(
        "--allow-unavailable-labels",
        action="store_true",
        help="let --config label versions that are not loaded yet",
    )
    parser.add_argument(
        "--max-concurrency",
        type=int,
        metavar="N",
        help="requests at a time, then RESOURCE_EXHAUSTED (default: 4 a core)",
    )
    parser.add_argument("--tls-key", metavar="FILE", help="private key (PEM)")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate (PEM)")
    parser.add_argument(
        "--tls-ca", metavar="FILE", help="certificates of clients (PEM)"
    )
    parser.add_argument(
        "--client-verify",
        action="store_true",
        help="let in only clients that show a certificate",
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="where Prometheus finds the metrics (default: nowhere)",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds for running requests at SIGTERM (default: 30)",
    )
    parser.add_argument(
        "--embedded",
        action="store_true",
        help="do not look for tensorflow_model_server",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="log every request"
    )


def run(args: argparse.Namespace) -> int:
    """Runs tensorflow_model_server where there is one, else our own."""
    if (args.export_dir is None) == (args.config is None):
        raise ValueError("Either DIR or --config must be given.")
    from rs_keras._checks import check_not_negative

    # Otherwise it would come to light when the server is to stop.
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
        server = _embedded(args).start()
        try:
            asked = _asked_to_stop()
            _announce(server, args)
            # A signal that another thread got does not wake this one.
            while not asked.wait(0.5):
                pass
            print(
                "Stopping: what runs is finished, what comes is refused.",
                flush=True,
            )
        finally:
            server.stop(args.grace)
    return 0


def _embedded(args: argparse.Namespace) -> Any:
    from rs_keras.serving import EmbeddedServer

    return EmbeddedServer(
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
        metrics_port=args.metrics_port,
        allow_unavailable_labels=args.allow_unavailable_labels,
    )


def _announce(server: Any, args: argparse.Namespace) -> None:
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


def _asked_to_stop() -> threading.Event:
    """Set at the first SIGTERM or Ctrl-C; the second ends the process."""
    asked = threading.Event()

    def stop(number: int, frame: Any) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    return asked


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
    """The flags that make tensorflow_model_server do what was asked."""
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
    flags = [
        f"--port={args.port}",
        "--enable_grpc_healthcheck_service=true",
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
        flags.append(f"--ssl_config_file={_kept('ssl', tls.text_proto())}")
    if args.metrics_port:
        from rs_keras.serving.server.metrics import PATH

        monitoring = f'prometheus_config {{ enable: true, path: "{PATH}" }}\n'
        flags += [
            f"--rest_api_port={args.metrics_port}",
            f"--monitoring_config_file={_kept('monitoring', monitoring)}",
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
    from rs_keras.serving.server import model_config

    text = model_config.single(
        args.export_dir,
        _model_name(args),
        _versions(args.versions),
        _labels(args.label),
    )
    return [f"--model_config_file={_kept('models', str(text))}"]


def _require_versions(folder: Path) -> None:
    """Without a version, tensorflow_model_server would wait for one."""
    if any(child.name.isdigit() for child in folder.iterdir()):
        return
    raise ValueError(
        f"No versions found under {folder}. Did you forget to name your leaf "
        "directory as a number (eg. '/1/')?"
    )


def _kept(name: str, text: str) -> str:
    """Writes a file that only this user can read, and that stays."""
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


def _tls(args: argparse.Namespace) -> Any:
    if not (args.tls_key or args.tls_cert):
        if args.tls_ca or args.client_verify:
            raise ValueError(
                "`--tls-ca` and `--client-verify` need --tls-key and "
                "--tls-cert."
            )
        return None
    if not (args.tls_key and args.tls_cert):
        raise ValueError("`--tls-key` and `--tls-cert` need each other.")
    from rs_keras.serving import TLS

    return TLS(args.tls_key, args.tls_cert, args.tls_ca, args.client_verify)


@contextmanager
def _json_logs(verbose: bool) -> Iterator[None]:
    """Writes what happens to stderr, one JSON object a line."""
    from rs_keras.serving.event_log import LOGGER
    from rs_keras.serving.event_log import JSONFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(JSONFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG if verbose else logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
