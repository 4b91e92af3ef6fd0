"""The page's server and the gRPC server that it asks, in this process."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from rs_keras._checks import check_count
from rs_keras.certification.certifier import Certifier
from rs_keras.export import export_certifier
from rs_keras.serving.client.certification_client import CertificationClient
from rs_keras.serving.demo.requests import Questions
from rs_keras.serving.demo.web import HOST
from rs_keras.serving.demo.web import WebServer
from rs_keras.serving.demo.web import page_files
from rs_keras.serving.server.addresses import require_free
from rs_keras.serving.server.embedded_server import EmbeddedServer

_NAME = "demo"
_LAST_PORT = 65_535


class DemoServer:
    """Serves the demonstration page; on this machine only.

    The certifier is exported, an `EmbeddedServer` loads the export, and the
    page's votes are asked from it over gRPC, as from any server. Both listen
    on the loopback interface alone.

    Args:
        certifier: What the page asks. It also attacks it: its model must have
            gradients.
        class_names: One a class; None for numbers.
        title: What the page calls the model.
        port: Of the page; 0 for any free one.

    Raises:
        ValueError: If an argument is out of its range, or the certifier
            cannot be exported.
        OSError: If the port is taken.

    Example:

    >>> import keras
    >>> from rs_keras import Certifier
    >>> from rs_keras.serving.demo import DemoServer
    >>> model = keras.Sequential([keras.Input([4, 4, 1]),
    ...                           keras.layers.Flatten(),
    ...                           keras.layers.Dense(3)])
    >>> demo = DemoServer(Certifier(model, sigma=0.5)).start()
    >>> demo.address.startswith("http://127.0.0.1:")
    True
    >>> demo.stop()  # or `with DemoServer(...) as demo:`
    """

    def __init__(
        self,
        certifier: Certifier,
        class_names: Sequence[str] | None = None,
        title: str = "a classifier",
        port: int = 0,
    ) -> None:
        self._certifier = certifier
        self._class_names = class_names
        self._title = title
        self._port = _checked_port(port)
        self._open = ExitStack()
        self._web: WebServer | None = None

    @property
    def address(self) -> str:
        """Where a browser on this machine finds the page."""
        if self._web is None:
            raise RuntimeError("The demo is not running; call start().")
        return self._web.address

    def start(self) -> Self:
        """Exports the certifier, serves the export, then opens the page.

        Raises:
            ValueError: If the certifier cannot be exported.
            OSError: If the port is taken.
        """
        # Before the export, which takes some seconds.
        require_free(HOST, self._port)
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            export_certifier(
                self._certifier,
                folder,
                warmup=False,
                class_names=self._class_names,
            )
            server = stack.enter_context(
                EmbeddedServer(folder, model_name=_NAME, port=0, poll_seconds=0)
            )
            client = stack.enter_context(
                CertificationClient(server.address, _NAME)
            )
            questions = Questions(self._certifier, client, self._title)
            files = page_files(questions.about())
            self._web = stack.enter_context(
                WebServer(
                    files,
                    {
                        "/certify": questions.certify,
                        "/explore": questions.explore,
                    },
                    questions.most_bytes,
                    self._port,
                )
            )
            self._open = stack.pop_all()
        return self

    def stop(self) -> None:
        """Closes the page, ends what runs, and removes the export."""
        self._web = None
        self._open.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _checked_port(port: int) -> int:
    if check_count("port", port, 0) > _LAST_PORT:
        raise ValueError(
            f"`port` must be between 0 and {_LAST_PORT}. Received: port={port}"
        )
    return port
