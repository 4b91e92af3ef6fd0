"""Embedded servers in processes of their own, to be killed.

Run as a script, it serves one export until it is told to end.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class ServerProcess:
    """An embedded server of the model "m", started and maybe not ready yet."""

    def __init__(self, base_path, cores=None):
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        pinned = "" if cores is None else ",".join(map(str, cores))
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(base_path), pinned],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._address = None

    @property
    def address(self):
        """Blocks until it serves."""
        if self._address is None:
            self._address = self.process.stdout.readline().strip()
        return self._address

    def signal(self, number):
        os.kill(self.process.pid, number)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def main(base_path, pinned):
    if pinned:
        os.sched_setaffinity(0, [int(core) for core in pinned.split(",")])
    from rs_keras.serving import EmbeddedServer

    with EmbeddedServer(
        base_path, model_name="m", port=0, poll_seconds=0.2
    ) as server:
        print(server.address, flush=True)
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
