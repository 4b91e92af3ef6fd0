"""The demo: the web server of the page, and a gRPC server behind it."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from rs_keras.certification.certifier import Certifier
from rs_keras.export import export_certifier
from rs_keras.serving.client.certification_client import CertificationClient
from rs_keras.serving.demo.api import DemoAPI
from rs_keras.serving.demo.web import HOST
from rs_keras.serving.demo.web import WebServer
from rs_keras.serving.demo.web import page_files
from rs_keras.serving.server.addresses import check_port
from rs_keras.serving.server.addresses import require_free
from rs_keras.serving.server.embedded_server import EmbeddedServer

_NAME = "demo"


@dataclass(eq=False, repr=False)
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

    certifier: Certifier
    class_names: Sequence[str] | None = None
    title: str = "a classifier"
    port: int = 0

    def __post_init__(self) -> None:
        check_port("port", self.port)
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
        require_free(HOST, self.port)
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            names = self.class_names
            export_certifier(
                self.certifier, folder, warmup=False, class_names=names
            )
            server = stack.enter_context(
                EmbeddedServer(folder, model_name=_NAME, port=0, poll_seconds=0)
            )
            client = stack.enter_context(
                CertificationClient(server.address, _NAME)
            )
            api = DemoAPI(self.certifier, client, self.title)
            web = WebServer(
                page_files(api.about()),
                {"/certify": api.certify, "/explore": api.explore},
                api.max_bytes,
                self.port,
            )
            self._web = stack.enter_context(web)
            self._open = stack.pop_all()
        return self

    def stop(self) -> None:
        """Closes the page, ends what runs, and removes the export."""
        self._web = None
        self._open.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()
