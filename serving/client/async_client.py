"""The client for asyncio."""

from collections.abc import AsyncGenerator
from collections.abc import AsyncIterator
from collections.abc import Iterable
from collections.abc import Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any
from typing import Self

import numpy as np

from rs_keras.certification.certificate import Certificate
from rs_keras.certification.certificate import Prediction
from rs_keras.certification.sequential.decision import Decision
from rs_keras.serving.client import operations
from rs_keras.serving.client import runners
from rs_keras.serving.client.fleet import fleet_of
from rs_keras.serving.client.operations import Example
from rs_keras.serving.client.plans import CertifyStream
from rs_keras.serving.client.plans import DecideStream
from rs_keras.serving.client.served_model import ServedModel


class AsyncCertificationClient:
    """`CertificationClient` for asyncio: the same calls, to be awaited.

    A call that is cancelled gives up its requests. Arguments, results and
    errors are those of `CertificationClient`.

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
        self._fleet = fleet_of(servers, model_name, **options)

    async def model(self) -> ServedModel:
        """Returns the version that is asked for."""
        return await self._run(operations.model)

    async def wait_ready(self, timeout: float = 60.0) -> ServedModel:
        """As `CertificationClient.wait_ready`."""
        return await self._run(
            lambda operation: operations.wait_ready(operation, timeout)
        )

    async def settings(self, **arguments: Any) -> dict[str, Any]:
        """As `CertificationClient.settings`."""
        return (await self.model()).settings(**arguments)

    async def sample(self, images: Any, **arguments: Any) -> np.ndarray:
        """As `CertificationClient.sample`."""
        return await self._run(
            lambda operation: operations.sample(operation, images, **arguments)
        )

    async def predict(self, images: Any, **arguments: Any) -> Prediction:
        """As `CertificationClient.predict`."""
        return await self._run(
            lambda operation: operations.predict(operation, images, **arguments)
        )

    async def certify(self, images: Any, **arguments: Any) -> Certificate:
        """As `CertificationClient.certify`."""
        return await self._run(
            lambda operation: operations.certify(operation, images, **arguments)
        )

    async def decide(
        self, images: Any, radius: float | Sequence[float], **arguments: Any
    ) -> Decision:
        """As `CertificationClient.decide`."""
        return await self._run(
            lambda operation: operations.decide(
                operation, images, radius, **arguments
            )
        )

    async def certify_each(
        self,
        examples: Iterable[Example],
        chunk: int | None = None,
        **arguments: Any,
    ) -> AsyncIterator[tuple[Any, Certificate]]:
        """As `CertificationClient.certify_each`, for `async for`."""
        model = await self.model()
        asked = CertifyStream(model, model.certify_spec(**arguments))
        async with aclosing(self._stream(examples, asked, chunk)) as found:
            async for pair in found:
                yield pair

    async def decide_each(
        self,
        examples: Iterable[Example],
        radius: float | Sequence[float],
        chunk: int | None = None,
        **arguments: Any,
    ) -> AsyncIterator[tuple[Any, Decision]]:
        """As `CertificationClient.decide_each`, for `async for`."""
        model = await self.model()
        asked = DecideStream(model, model.decide_spec(radius, **arguments))
        async with aclosing(self._stream(examples, asked, chunk)) as found:
            async for pair in found:
                yield pair

    async def _stream(
        self,
        examples: Iterable[Example],
        asked: CertifyStream | DecideStream,
        chunk: int | None,
    ) -> AsyncGenerator[tuple[Any, Any], None]:
        jobs = runners.iterate_async(
            self._fleet,
            lambda operation: operations.stream(
                operation, examples, asked.model, asked.plan, chunk
            ),
        )
        async with aclosing(jobs) as found:
            async for some in found:
                for job in some:
                    yield job.key, asked.answer(job)

    async def close(self) -> None:
        """Ends the connections."""
        self._fleet.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _run(self, make: runners.Make) -> Any:
        return await runners.run_async(self._fleet, make)
