"""`rs-keras serve`: processes, signals, exit codes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from kits.tf_serving import connect
from kits.tf_serving import predict_request
from kits.tf_serving import save

from rs_keras.cli import main


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "mnist"
    save(path / "1")
    return path


@contextmanager
def serve(*arguments, path=""):
    """Runs the command; yields the process, its address and first line."""
    environment = {**os.environ, "PATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    script = "import sys; from rs_keras.cli import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).resolve().parents[2],
    )
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        found = re.search(r"on (\S+:\d+) with", line)
        yield process, found and found.group(1), line
    finally:
        process.kill()
        process.communicate()


def test_a_server_killed_and_restarted_serves_until_sigterm(export):
    """One life in two processes: killed while it works, then stopped."""
    with serve(export, "--port", 0) as (process, address, line):
        assert line.startswith("Serving mnist (version 1) on 127.0.0.1:")
        assert "as tensorflow_model_server is not on the PATH" in line
        with connect(address) as wire:
            assert wire.line(model="mnist") == 3.0
            running = wire.prediction.Predict.future(
                predict_request("mnist", "spin", n=np.int64([10**12]))
            )
            with pytest.raises(grpc.FutureTimeoutError):
                running.result(0.5)
            process.send_signal(signal.SIGKILL)
            assert running.code() is grpc.StatusCode.UNAVAILABLE
    port = address.rpartition(":")[2]
    with serve(export, "--port", port, "--verbose") as (process, again, _):
        assert again == address
        with connect(address) as wire:
            assert wire.line(model="mnist") == 3.0
            running = wire.prediction.Predict.future(
                predict_request("mnist", "spin", n=np.int64([20_000]))
            )
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            out, err = process.stdout.read(), process.stderr.read()
            # What had begun is finished; what came in this very instant is
            # refused, by gRPC itself if it had no thread yet.
            assert running.code() in (
                grpc.StatusCode.OK,
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.CANCELLED,
            )
        assert process.returncode == 0
        assert "running requests are finished, new ones refused" in out
        events = [
            json.loads(line) for line in err.splitlines() if line[:1] == "{"
        ]
        assert events[0]["event"] == "version_available"
        assert (events[0]["model"], events[0]["version"]) == ("mnist", 1)
        assert {"event", "api", "status"} <= set(events[1])


def run(*arguments):
    return main(["serve", "--embedded", *map(str, arguments)])


def test_serve_names_a_port_that_is_in_use(export, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(export, "--port", port) == 2
    assert capsys.readouterr().err == (
        f"rs-keras serve: Cannot listen on 127.0.0.1:{port}: Address already "
        "in use. Choose another port, or stop the server that has it.\n"
    )


BAD_CALLS = {
    "nothing": ([], "Either DIR or --config must be given."),
    "both": (["d", "--config", "f"], "Either DIR or --config must be given."),
    "no such folder": (["/no/such"], "Could not find base path /no/such"),
    "no such config": (["--config", "/no/such"], "No such file"),
    "versions": (["d", "--versions", "new"], "`--versions` must be latest"),
    "label": (["d", "--label", "stable"], "`--label` must be LABEL=VERSION"),
    "labels of a config": (
        ["--config", "f", "--label", "stable=1"],
        "`--versions` and `--label` go with DIR",
    ),
    "key alone": (["d", "--tls-key", "k"], "need each other"),
    "ca alone": (["d", "--tls-ca", "c"], "need --tls-key and --tls-cert"),
    "no such key": (
        ["d", "--tls-key", "/no/key", "--tls-cert", "/no/crt"],
        "No such file",
    ),
    "grace": (["d", "--grace", "-1"], "`grace` must be a finite number >= 0"),
    "port": (["d", "--port", "70000"], "`port` must be between 0 and 65535"),
}


@pytest.mark.parametrize(
    "arguments, message", BAD_CALLS.values(), ids=BAD_CALLS.keys()
)
def test_bad_serve_calls_exit_with_2(capsys, arguments, message):
    assert run(*arguments) == 2
    err = capsys.readouterr().err.splitlines()
    (line,) = [text for text in err if text.startswith("rs-keras serve: ")]
    assert message in line


def test_bad_files_to_serve_exit_with_2(export, tmp_path, capsys):
    """A config with a mistake, half an export, a key of another's."""
    config = tmp_path / "models.pbtxt"
    config.write_text("model_config_list { confg {} }")
    assert run("--config", config) == 2
    assert (
        "Error parsing text-format tensorflow.serving.ModelServerConfig"
        in capsys.readouterr().err
    )

    half = tmp_path / "half" / "1"
    half.mkdir(parents=True)
    content = (export / "1" / "saved_model.pb").read_bytes()
    (half / "saved_model.pb").write_bytes(content[:5000])
    assert run(half.parent, "--port", 0) == 2
    assert (
        "Failed to start server. Error: UNKNOWN: 1 servable(s) did not become "
        "available: {{name: half version: 1} due to error: DATA_LOSS: Can't "
        f"parse {half}/saved_model.pb as binary proto}}, }}\n"
    ) in capsys.readouterr().err

    (tmp_path / "key").write_text("no key")
    files = ["--tls-key", tmp_path / "key", "--tls-cert", tmp_path / "key"]
    assert run(export, *files) == 2
    assert "must be PEM files that belong together" in capsys.readouterr().err


@pytest.fixture
def binary(tmp_path, monkeypatch):
    """Stands for tensorflow_model_server: prints how it was called."""
    path = tmp_path / "bin" / "tensorflow_model_server"
    path.parent.mkdir()
    path.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    called = []

    def execv(path, command):
        called.append((path, command))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    return path, called


def flags_for(binary, *arguments):
    path, called = binary
    with pytest.raises(SystemExit):
        main(["serve", *map(str, arguments)])
    (program, command) = called.pop()
    assert program == command[0] == str(path)
    return dict(flag.removeprefix("--").split("=", 1) for flag in command[1:])


def test_binary_takes_over_the_process(export, tmp_path):
    path = tmp_path / "tensorflow_model_server"
    path.write_text('#!/bin/sh\necho "was run with $#"\n')
    path.chmod(0o755)
    with serve(export, path=str(tmp_path)) as (process, _, line):
        assert line.startswith(f"Serving with {path}: TF Serving itself")
        assert "was run with 6" in process.stdout.read()
        assert process.wait(30) == 0


def test_flags_of_the_binary(binary, export, capsys):
    assert flags_for(binary, export) == {
        "port": "8500",
        "enable_grpc_healthcheck_service": "true",
        # Twice the threads that TF Serving has for requests.
        "tensorflow_inter_op_parallelism": str(8 * os.cpu_count()),
        "file_system_poll_wait_seconds": "1",
        "model_name": "mnist",
        "model_base_path": str(export),
    }
    out = capsys.readouterr().out
    assert "TF Serving itself, on ALL interfaces of this machine" in out


def test_more_flags_of_the_binary(binary, export, tmp_path):
    flags = flags_for(
        binary,
        export,
        "--port=9000",
        "--versions=1,2",
        "--label=stable=1",
        f"--unix-socket={tmp_path}/s",
        "--max-concurrency=3",
        "--rest-port=8501",
    )
    assert flags["port"] == "9000"
    assert flags["grpc_socket_path"] == f"{tmp_path}/s"
    assert flags["grpc_max_threads"] == "3"
    assert flags["tensorflow_inter_op_parallelism"] == "6"
    assert flags["rest_api_port"] == "8501"
    assert flags["allow_version_labels_for_unavailable_models"] == "true"
    config = Path(flags["model_config_file"]).read_text()
    assert "specific {\n        versions: 1\n        versions: 2" in config
    assert 'key: "stable"' in config
    # Such a file may hold a key: nobody else may look into its folder.
    folder = os.path.dirname(flags["model_config_file"])
    assert os.stat(folder).st_mode & 0o077 == 0
    monitoring = Path(flags["monitoring_config_file"]).read_text()
    assert monitoring == (
        "prometheus_config { enable: true, "
        'path: "/monitoring/prometheus/metrics" }\n'
    )


def test_config_flags_of_the_binary(binary, tmp_path):
    flags = flags_for(
        binary, "--config", tmp_path / "c", "--config-poll-seconds", 30
    )
    assert flags["model_config_file"] == str(tmp_path / "c")
    assert flags["model_config_file_poll_wait_seconds"] == "30"
    assert "model_name" not in flags


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--host=127.0.0.1"], "`--host` must be 0.0.0.0"),
        (["--port=0"], "`--port` must be a number"),
        (["--max-rows=9"], "`--max-rows` is a limit of the embedded server"),
    ],
    ids=["host", "port", "limit"],
)
def test_what_the_binary_cannot_do(binary, export, capsys, arguments, message):
    assert main(["serve", str(export), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_binary_is_not_started_for_nothing(binary, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["serve", str(tmp_path / "empty")]) == 2
    assert "Did you forget to name your leaf" in capsys.readouterr().err
