"""The client: certificates from TF Serving, or from a fleet of it."""

import copy
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from typing import Self
from typing import TypeVar

import numpy as np

from rs_keras._checks import check_flag
from rs_keras.certification.certificate import Certificate
from rs_keras.certification.certificate import Prediction
from rs_keras.certification.sequential.decision import Decision
from rs_keras.certification.spec import CertifySpec
from rs_keras.noise.keyed_seeds import Seed
from rs_keras.serving import receipts
from rs_keras.serving.client import discovery
from rs_keras.serving.client import procedures
from rs_keras.serving.client.channels import Token
from rs_keras.serving.client.fleet import Fleet
from rs_keras.serving.client.requests import Call
from rs_keras.serving.client.served_model import ServedModel
from rs_keras.serving.client.tasks import Progress
from rs_keras.serving.errors import ServingError
from rs_keras.serving.tls import ClientTLS

_Result = TypeVar("_Result")
# A call fails if the version is replaced more often than this.
_MOST_RESTARTS = 3
# Arguments of `certify` that select the settings of the export; the others are
# None.
_AS_EXPORTED = {"beta": CertifySpec.beta}


class CertificationClient:
    """Certifies images by asking TF Serving, or `EmbeddedServer`, over gRPC.

    With several servers the draws of one image are shared out among them.
    Draws are addressed by seed and number, so the counts are those that the
    exported certifier would make in process, whichever server made which
    (up to float ties between hardware), and a chunk that is sent again is the
    same chunk: nothing is counted twice or lost.

    The newest version that most servers have is asked for until it is
    unloaded; then a call that is under way begins again with the next, under a
    fresh seed unless one was given. All servers must describe it alike.

    A request is sent again, at most `retries` times in a row to one server,
    when a server is away (UNAVAILABLE, a dropped connection), or, in smaller
    chunks, when its deadline passed; for `timeout` seconds, when it is busy
    (RESOURCE_EXHAUSTED). Anything else leaves the server out of the call, and
    is the error if no other is left. A request that takes much longer than
    usual is repeated by another server, with the same draws. One client may be
    used from several threads: use one for all, since it limits the requests of
    all its calls to what the servers take. It does not connect before it is
    asked for something.

    An answer is evidence: labels, bounds and radii are computed here, from the
    counts. A server whose answer no export can give, such as more votes than
    draws, or a radius that its counts do not give, is left out of the call.
    Counts that are merely wrong only an audit finds.

    Args:
        servers: `"host:8500"`, `"unix:/path"`, or `"dns:///name:8500"` for all
            machines behind a name; several in a list, or separated by commas.
        model_name: What the servers call the model.
        version: Of the model; None for the newest.
        timeout: Seconds that one request may take, > 0. The deadline also
            ends the server's work. A server that is busy is asked again for
            as long.
        retries: How often a server that failed is tried again in one call.
        in_flight: Requests of one call that run on a server at the same time.
            Those of all calls are limited by what the server takes without
            refusing.
        tls: A `ClientTLS` for encrypted connections; True for the system's
            certificates.
        audit: Share of the chunks, in [0, 1], that another server repeats.
            If the two disagree by more than rounding explains, a third repeats
            the chunk; the outvoted server is left out, and all of its draws
            in the call are repeated. With two servers alone, and
            where it is too late (`certify_each`, `decide_each`), that is an
            error which names them. None is made with one server.
        token: A bearer token for each request, or a function that returns it:
            it is called for each request, so the token may change. Other
            machines get it over TLS only.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> import tempfile
    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras.export import export_certifier
    >>> from rs_keras.serving import CertificationClient, EmbeddedServer
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
    >>> folder = tempfile.mkdtemp()
    >>> _ = export_certifier(certifier, folder, n=100, image_shape=(1, 1, 2))
    >>> image = np.array([[[[1.0, 0.0]]]])
    >>> server = EmbeddedServer(folder, model_name="half", port=0).start()
    >>> client = CertificationClient(server.address, "half")
    >>> client.wait_ready().name, client.model.version, client.sigma
    ('half', 1, 0.5)
    >>> counts = client.sample(image, n=500, seed=7)
    >>> bool((counts == certifier.sample(image, n=500, seed=7)).all())
    True
    >>> client.certify(image, n=1_000, seed=7).radius == (
    ...     certifier.certify(image, n=1_000, seed=7).radius)
    array([ True])
    >>> client.predict(image, seed=7).label
    array([0])
    >>> client.decide(image, radius=0.25, seed=7).certified
    array([ True])
    >>> client.settings()["n"], client.decision_settings(0.25)["radii"]
    (100, [0.25])

    Many images, several at a time, each with a name of its own:

    >>> examples = [("a", image[0], None), ("b", image[0], None)]
    >>> sorted(name for name, _ in client.certify_each(examples))
    ['a', 'b']
    >>> sorted(name for name, _ in client.decide_each(examples, radius=0.25))
    ['a', 'b']
    >>> client.close()
    >>> server.stop()
    """

    def __init__(
        self,
        servers: str | Iterable[str],
        model_name: str = "default",
        *,
        version: int | None = None,
        timeout: float = 60.0,
        retries: int = 5,
        in_flight: int = 2,
        tls: ClientTLS | bool | None = None,
        audit: float = 0.0,
        token: Token | None = None,
    ) -> None:
        self._fleet = Fleet(
            servers,
            model_name,
            version=version,
            timeout=timeout,
            retries=retries,
            in_flight=in_flight,
            tls=tls,
            audit=audit,
            token=token,
        )
        # Set for `AsyncCertificationClient`, which may stop it; otherwise each
        # method makes a new one.
        self._only_call: Call | None = None

    def _for_one_call(self) -> tuple[Self, Callable[[], None]]:
        """Returns a client for one call, and what stops it from elsewhere."""
        client = copy.copy(self)
        client._only_call = Call(self._fleet)
        return client, client._only_call.stop

    def _call(self) -> Call:
        return self._only_call or Call(self._fleet)

    def _run(self, attempt: Callable[[Call, ServedModel], _Result]) -> _Result:
        """Calls `attempt` with the model; retries if its version was unloaded.

        Raises:
            ServingError: If no server serves the model, or its versions change
                too often.
        """
        replaced = ""
        with self._call() as call:
            for _ in range(_MOST_RESTARTS + 1):
                model = discovery.served_model(call)
                try:
                    return attempt(call, model)
                except discovery.VersionUnavailable as error:
                    replaced = str(error) or replaced
                    discovery.forget(call, model, replaced)
            raise ServingError(
                f"the versions of model {model.name!r} change too often: all "
                "servers unloaded the requested version "
                f"{_MOST_RESTARTS + 1} times during this call, last version "
                f"{model.version}. Retry after the roll-out has finished. "
                f"{replaced}".rstrip()
            )

    @property
    def model(self) -> ServedModel:
        """The version of the model that is used, with its metadata."""
        with self._call() as call:
            return discovery.served_model(call)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise, in pixel units."""
        return self.model.sigma

    def wait_ready(self, timeout: float = 60.0) -> ServedModel:
        """Waits until the model is served.

        Args:
            timeout: Seconds to wait at most, >= 0.

        Returns:
            The model.

        Raises:
            ServingError: If no server answers in time; the last reason.
        """
        with self._call() as call:
            return discovery.wait_ready(call, timeout)

    def settings(
        self,
        n0: int | None = None,
        n: int | None = None,
        alpha: float | None = None,
        bound: str | None = None,
        beta: float = 1.0,
        runner_up: bool | None = None,
        tolerance: float | None = None,
        max_radius: float | None = None,
    ) -> dict[str, Any]:
        """Validates the arguments of `certify` and returns them as settings.

        The arguments and errors are those of `certify`.
        """
        return self.model.settings(
            n0=n0,
            n=n,
            alpha=alpha,
            bound=bound,
            beta=beta,
            runner_up=runner_up,
            tolerance=tolerance,
            max_radius=max_radius,
        )

    def decision_settings(
        self,
        radius: float | Sequence[float],
        alpha: float | None = None,
        n_max: int = 100_000,
        runner_up: bool | None = None,
        n0: int | None = None,
    ) -> dict[str, Any]:
        """Validates the arguments of `decide` and returns them as settings."""
        model = self.model
        spec = model.decide_spec(
            radius, alpha=alpha, n_max=n_max, runner_up=runner_up, n0=n0
        )
        return procedures.Decide(model, spec).settings

    def sample(
        self,
        images: Any,
        n: int = 1_000,
        seed: Seed = 7,
        first: int = 0,
        chunk: int | None = None,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Counts the votes of draws first .. first+n-1: int64 [B, C].

        The arguments are those of `Certifier.sample`; `chunk` and `progress`
        as in `certify`.
        """
        return self._run(
            lambda call, model: procedures.Sample(model, n, first).run(
                call, images, seed, chunk, progress
            )
        )

    def predict(
        self,
        images: Any,
        n: int | None = None,
        alpha: float | None = None,
        seed: Seed = None,
        chunk: int | None = None,
        progress: Progress | None = None,
    ) -> Prediction:
        """Predicts the smoothed classifier's label, or abstains.

        As `Certifier.predict`. With images alone, and one server, it is one
        request with the server's seed, as in `certify`; else the votes are
        counted by all servers.
        """
        as_exported = all(one is None for one in (n, alpha, seed, chunk))

        def attempt(call: Call, model: ServedModel) -> Prediction:
            procedure = procedures.Predict(model, n, alpha)
            if as_exported and procedure.is_one_request(call):
                return procedure.ask_one(call, images)
            return procedure.run(call, images, seed, chunk, progress)

        return self._run(attempt)

    def certify(
        self,
        images: Any,
        n0: int | None = None,
        n: int | None = None,
        alpha: float | None = None,
        bound: str | None = None,
        beta: float = 1.0,
        runner_up: bool | None = None,
        tolerance: float | None = None,
        max_radius: float | None = None,
        seed: Seed = None,
        chunk: int | None = None,
        progress: Progress | None = None,
        receipt: bool = False,
    ) -> Certificate:
        """Certifies each image.

        The draws are made in chunks by all servers, and the bound is computed
        here. With images alone the numbers are those of the export; if there
        is one server only, or the export's seeds are keyed, that is one
        request, and the server makes the seed. (A request with a keyed seed
        goes to another server where one fails or is overdue.)

        Args:
            images: [B, H, W, C]: floats in [0, 1], or uint8.
            n0: Draws that select the class; None is as exported, here and
                below.
            n: Draws that bound its probability; more than the server makes at
                once does not matter.
            alpha: Probability of a certificate that is not true, for each
                image, in (0, 1).
            bound: "clopper_pearson" or "joint": servers count votes, and either
                bound follows from them.
            beta: Of soft bounds, which are not served.
            runner_up: Whether to bound the second class, too; see
                `Certifier.certify`.
            tolerance: Radius to give up per image to use fewer draws; see
                `Certifier.certify`.
            max_radius: Radii above it are given as it is.
            seed: See `rs_keras.noise.as_seeds`; None is fresh entropy.
            chunk: Draws per request; None takes about a second's.
            progress: Is called with (draws made, draws in all) after each
                request.
            receipt: Whether to add a receipt, with which `rs-keras verify`
                checks the certificate later: JSON, in the attribute `receipt`.

        Returns:
            A `Certificate`; its settings name model and version.

        Raises:
            ValueError: If an argument is out of its range.
            ServingError: If the servers fail, or differ.
        """
        arguments: dict[str, Any] = {
            "n0": n0,
            "n": n,
            "alpha": alpha,
            "bound": bound,
            "beta": beta,
            "runner_up": runner_up,
            "tolerance": tolerance,
            "max_radius": max_radius,
        }
        check_flag("receipt", receipt)
        as_exported = (
            seed is None
            and chunk is None
            and all(
                value == _AS_EXPORTED.get(name)
                for name, value in arguments.items()
            )
        )

        def attempt(call: Call, model: ServedModel) -> Certificate:
            spec = model.certify_spec(**arguments)
            procedure = procedures.Certify(model, spec)
            if as_exported and procedure.is_one_request(call):
                found = procedure.ask_one(call, images)
            else:
                found = procedure.run(call, images, seed, chunk, progress)
            if not receipt:
                return found
            text = receipts.write(model, model.images(images), found)
            return replace(found, receipt=text)

        return self._run(attempt)

    def decide(
        self,
        images: Any,
        radius: float | Sequence[float],
        alpha: float | None = None,
        n_max: int = 100_000,
        runner_up: bool | None = None,
        seed: Seed = None,
        n0: int | None = None,
        chunk: int | None = None,
        progress: Progress | None = None,
    ) -> Decision:
        """Decides whether each image keeps its label within a radius.

        As `Certifier.decide`, with the draws made by all servers. None is as
        exported; `chunk` and `progress` are as in `certify`, and how many
        draws there will be is not known.
        """

        def attempt(call: Call, model: ServedModel) -> Decision:
            spec = model.decide_spec(
                radius, alpha=alpha, n_max=n_max, runner_up=runner_up, n0=n0
            )
            procedure = procedures.Decide(model, spec)
            return procedure.run(call, images, seed, chunk, progress)

        return self._run(attempt)

    def certify_each(
        self,
        examples: Iterable[procedures.Example],
        n0: int | None = None,
        n: int | None = None,
        alpha: float | None = None,
        bound: str | None = None,
        beta: float = 1.0,
        runner_up: bool | None = None,
        tolerance: float | None = None,
        max_radius: float | None = None,
        chunk: int | None = None,
    ) -> Iterator[tuple[Any, Certificate]]:
        """Certifies a stream of images, several at a time.

        Args:
            examples: Yields (key, image, seed): any name, an image [H, W, C]
                or [1, H, W, C], and its seed, int64 [2], or None. It is read
                as far as there are servers to work on it.
            n0: This and the others as in `certify`.
            n: See `certify`.
            alpha: See `certify`.
            bound: See `certify`.
            beta: See `certify`.
            runner_up: See `certify`.
            tolerance: See `certify`.
            max_radius: See `certify`.
            chunk: See `certify`.

        Yields:
            (key, certificate of one row), in the order in which they are
            finished. All are of one version of the model.
        """
        model = self.model
        spec = model.certify_spec(
            n0=n0,
            n=n,
            alpha=alpha,
            bound=bound,
            beta=beta,
            runner_up=runner_up,
            tolerance=tolerance,
            max_radius=max_radius,
        )
        procedure = procedures.Certify(model, spec)
        return procedure.each(self._call(), examples, chunk)

    def decide_each(
        self,
        examples: Iterable[procedures.Example],
        radius: float | Sequence[float],
        alpha: float | None = None,
        n_max: int = 100_000,
        runner_up: bool | None = None,
        n0: int | None = None,
        chunk: int | None = None,
    ) -> Iterator[tuple[Any, Decision]]:
        """Runs `decide` on a stream of images, as `certify_each`."""
        model = self.model
        spec = model.decide_spec(
            radius, alpha=alpha, n_max=n_max, runner_up=runner_up, n0=n0
        )
        procedure = procedures.Decide(model, spec)
        return procedure.each(self._call(), examples, chunk)

    def close(self) -> None:
        """Ends the connections."""
        self._fleet.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
