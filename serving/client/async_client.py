"""The client for asyncio: `CertificationClient` in threads."""

import asyncio
from collections.abc import AsyncGenerator
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from typing import Self

import numpy as np

from rs_keras.certification.certificate import Certificate
from rs_keras.certification.certificate import Prediction
from rs_keras.certification.sequential.decision import Decision
from rs_keras.serving.client.certification_client import CertificationClient
from rs_keras.serving.client.procedures import Example
from rs_keras.serving.client.served_model import ServedModel

# Maximum number of concurrent calls; further calls wait.
_MOST_CALLS = 64


class AsyncCertificationClient:
    """`CertificationClient` for asyncio, with the same methods.

    Cancelling a call cancels its requests. Arguments, results and
    errors are those of `CertificationClient`; each call runs in a thread, in
    which `progress` is called and `examples` are read.

    Example:

    >>> import asyncio
    >>> import tempfile
    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras.export import export_certifier
    >>> from rs_keras.serving import AsyncCertificationClient, EmbeddedServer
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
    >>> folder = tempfile.mkdtemp()
    >>> _ = export_certifier(certifier, folder, n=100, image_shape=(1, 1, 2))
    >>> image = np.array([[[[1.0, 0.0]]]])
    >>> async def ask(address):
    ...     client = AsyncCertificationClient(address, "half")
    ...     model = await client.wait_ready()
    ...     print(model.name, (await client.model()).version)
    ...     counts = await client.sample(image, n=500, seed=7)
    ...     print((counts == certifier.sample(image, n=500, seed=7)).all())
    ...     print((await client.settings())["n"])
    ...     answers = await asyncio.gather(
    ...         client.predict(image, seed=7),
    ...         client.certify(image, n=1_000, seed=7),
    ...         client.decide(image, radius=0.25, seed=7))
    ...     print([int(answer.label[0]) for answer in answers])
    ...     async for name, found in client.certify_each([("a", image, None)]):
    ...         print(name, found.label)
    ...     examples = [("b", image, None)]
    ...     async for name, found in client.decide_each(examples, 0.25):
    ...         print(name, found.certified)
    ...     await client.close()
    >>> with EmbeddedServer(folder, model_name="half", port=0) as server:
    ...     asyncio.run(ask(server.address))
    half 1
    True
    100
    [0, 0, 0]
    a [0]
    b [ True]
    """

    def __init__(
        self,
        servers: str | Iterable[str],
        model_name: str = "default",
        **options: Any,
    ) -> None:
        self._client = CertificationClient(servers, model_name, **options)
        # The threads end with this client, or with the interpreter.
        self._threads = ThreadPoolExecutor(_MOST_CALLS, "certification")

    async def model(self) -> ServedModel:
        """Returns the version of the model that is used."""
        return await self._run(lambda client: client.model)

    async def wait_ready(self, timeout: float = 60.0) -> ServedModel:
        """As `CertificationClient.wait_ready`."""
        return await self._run(CertificationClient.wait_ready, timeout)

    async def settings(self, **arguments: Any) -> dict[str, Any]:
        """As `CertificationClient.settings`."""
        return await self._run(CertificationClient.settings, **arguments)

    async def sample(self, images: Any, **arguments: Any) -> np.ndarray:
        """As `CertificationClient.sample`."""
        return await self._run(CertificationClient.sample, images, **arguments)

    async def predict(self, images: Any, **arguments: Any) -> Prediction:
        """As `CertificationClient.predict`."""
        return await self._run(CertificationClient.predict, images, **arguments)

    async def certify(self, images: Any, **arguments: Any) -> Certificate:
        """As `CertificationClient.certify`."""
        return await self._run(CertificationClient.certify, images, **arguments)

    async def decide(
        self, images: Any, radius: float | Sequence[float], **arguments: Any
    ) -> Decision:
        """As `CertificationClient.decide`."""
        method = CertificationClient.decide
        return await self._run(method, images, radius, **arguments)

    def certify_each(
        self,
        examples: Iterable[Example],
        chunk: int | None = None,
        **arguments: Any,
    ) -> AsyncGenerator[tuple[Any, Certificate], None]:
        """As `CertificationClient.certify_each`, for `async for`."""
        method = CertificationClient.certify_each
        return self._each(method, examples, chunk=chunk, **arguments)

    def decide_each(
        self,
        examples: Iterable[Example],
        radius: float | Sequence[float],
        chunk: int | None = None,
        **arguments: Any,
    ) -> AsyncGenerator[tuple[Any, Decision], None]:
        """As `CertificationClient.decide_each`, for `async for`."""
        method = CertificationClient.decide_each
        return self._each(method, examples, radius, chunk=chunk, **arguments)

    async def close(self) -> None:
        """Ends the connections."""
        self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _run(
        self, method: Callable[..., Any], *args: Any, **arguments: Any
    ) -> Any:
        """Calls a method in a thread; stops the call if this is cancelled."""
        client, stop = self._client._for_one_call()
        try:
            return await self._in_thread(method, client, *args, **arguments)
        finally:
            stop()

    async def _each(
        self, method: Callable[..., Any], *args: Any, **arguments: Any
    ) -> AsyncGenerator[tuple[Any, Any], None]:
        """Yields the results of a stream, each computed in a thread."""
        client, stop = self._client._for_one_call()
        try:
            results = await self._in_thread(method, client, *args, **arguments)
            while pair := await self._in_thread(next, results, None):
                yield pair
        finally:
            stop()

    async def _in_thread(
        self, function: Callable[..., Any], *args: Any, **arguments: Any
    ) -> Any:
        loop = asyncio.get_running_loop()
        work = partial(function, *args, **arguments)
        return await loop.run_in_executor(self._threads, work)
