"""Runs requests so that none waits for a long one.

Requests to a certifier that take longer than a slice are cut into slices. One
slice runs on each core; slices of different requests and clients take turns.
Short requests run at once, before the slices, which leave a core to them.
Models that this library did not export run whole, on threads of their own.
"""

import json
import os
import threading
import time

import numpy as np

from rs_keras.export import metadata
from rs_keras.export import signature
from rs_keras.serving.server.grpc_errors import StatusError
from rs_keras.serving.server.predict import SessionCall
from rs_keras.serving.server.runtime import SHORT
from rs_keras.serving.server.runtime import SLICES
from rs_keras.serving.server.runtime import WHOLE
from rs_keras.serving.server.scheduling import limits as limits_lib
from rs_keras.serving.server.scheduling.certifier import Arrays
from rs_keras.serving.server.scheduling.certifier import Engine
from rs_keras.serving.server.scheduling.certifier import slices
from rs_keras.serving.server.scheduling.costs import SLICE_SECONDS
from rs_keras.serving.server.scheduling.costs import Backlog
from rs_keras.serving.server.scheduling.costs import Slots
from rs_keras.serving.server.scheduling.limits import Limits
from rs_keras.serving.server.scheduling.turns import Caller
from rs_keras.serving.server.scheduling.turns import Turns
from rs_keras.serving.server.scheduling.worker import METADATA
from rs_keras.serving.server.scheduling.worker import Worker

# A slice keeps about one core busy: on few draws, an operation has too little
# to do for several threads. More side by side take memory.
_MOST_AT_ONCE = 8
# Short requests, those that wait for a turn among them.
_MOST_SHORT = 256


class Scheduler:
    """Admits requests and runs them.

    Args:
        limits: Of requests.
        max_concurrency: Requests at a time to models that are no certifiers;
            one more gets RESOURCE_EXHAUSTED.
    """

    def __init__(self, limits: Limits, max_concurrency: int) -> None:
        self.limits = limits
        self._backlog = Backlog(
            limits.max_backlog_seconds, limits_lib.max_bytes_at_once(limits)
        )
        cores = os.cpu_count() or 1
        self._at_once = min(cores, _MOST_AT_ONCE)
        self._slices = Turns(self._at_once)
        self._short = Turns(2 * cores)
        self._waiting = Slots(_MOST_SHORT)
        self._whole = Slots(max_concurrency)

    @property
    def fullness(self) -> float:
        """How full the server is: 0 (idle) to 1 (it turns requests away)."""
        parts = (self._backlog, self._waiting, self._whole)
        return max(part.fullness for part in parts)

    def run(self, worker: Worker, call: SessionCall, caller: Caller) -> Arrays:
        """Answers a request.

        Args:
            worker: The version that answers.
            call: The signature, its inputs and the outputs wanted.
            caller: Who asks.

        Returns:
            The outputs by name, those wanted or more.

        Raises:
            StatusError: If the request fails or is turned away.
        """
        name, inputs = call.signature_name, call.inputs
        if worker.export is None:
            with self._whole.one():
                return _ask(worker, call, caller, WHOLE)
        size = sum(array.nbytes for array in inputs.values())
        if not worker.is_regular(name, inputs):
            # The graph says what is wrong, before it draws anything.
            with self._backlog.admitted(0.0, size):
                return _ask(worker, call, caller, SHORT)
        draws = worker.export.draws(name, inputs)
        if draws is not None:
            limits_lib.check_draws(self.limits, int(draws.max(initial=0)))
            expected = worker.export.expected_draws(name, draws)
        else:
            rows = len(next(iter(inputs.values())))
            expected = rows if name == signature.LOGITS else 0
        alone = worker.cost.seconds(expected)
        seconds = alone / self._at_once
        limits_lib.check_cost(self.limits, seconds)
        if expected and not 0 < alone <= SLICE_SECONDS:
            with self._backlog.admitted(seconds, size):
                return self._run_long(worker, call, caller)
        with (
            self._waiting.one(),
            self._backlog.admitted(0.0, size),
            self._slices.reserve(),
            self._short.turn(caller),
        ):
            outputs = _ask(worker, call, caller, SHORT)
        if METADATA in outputs:
            outputs[METADATA] = self._with_limits(outputs[METADATA])
        return outputs

    def _run_long(
        self, worker: Worker, call: SessionCall, caller: Caller
    ) -> Arrays:
        name = call.signature_name
        if worker.export is None or name == signature.LOGITS:
            with self._slices.turn(caller):
                return _ask(worker, call, caller, SLICES)

        def ask(
            name: str, inputs: Arrays, outputs: list[str]
        ) -> list[np.ndarray]:
            seconds = caller.seconds_left()
            return worker.model.call(name, inputs, outputs, seconds, SHORT)

        def votes(request: Arrays) -> np.ndarray:
            return self._votes(worker, request, caller)

        return worker.export.answer(name, call.inputs, Engine(ask, votes))

    def _votes(
        self, worker: Worker, request: Arrays, caller: Caller
    ) -> np.ndarray:
        """Votes of a request to `sample`, from slices side by side."""
        parts = slices(request, worker.cost.slice_draws)
        counts = np.zeros([len(request["n"]), worker.num_classes], np.int64)
        drawn = np.zeros_like(request["n"])
        failures: list[Exception] = []
        lock = threading.Lock()

        def work() -> None:
            try:
                while not failures:
                    with lock:
                        rows, part = next(parts, (None, {}))
                    if rows is None:
                        return
                    votes = self._slice(worker, part, caller)
                    with lock:
                        counts[rows] += votes
                        drawn[rows] += part["n"]
            except Exception as error:
                failures.append(error)

        threads = []
        if request["n"].sum() > worker.cost.slice_draws():
            threads = [
                threading.Thread(target=work, name="slices")
                for _ in range(self._at_once - 1)
            ]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        if (drawn != request["n"]).any():
            # A certificate must not rest on fewer votes than it says.
            raise StatusError("INTERNAL", "slices of the request were lost")
        return counts

    def _slice(
        self, worker: Worker, part: Arrays, caller: Caller
    ) -> np.ndarray:
        with self._slices.turn(caller):
            seconds = caller.seconds_left()
            begun = time.monotonic()
            (counts,) = worker.model.call(
                signature.SAMPLE, part, ["counts"], seconds, SLICES
            )
            worker.cost.measured(int(part["n"].sum()), time.monotonic() - begun)
        return counts

    def _with_limits(self, texts: np.ndarray) -> np.ndarray:
        """Adds the limits of this server to what `describe` answers."""
        answers = np.empty_like(texts)
        for row, text in enumerate(texts.tolist()):
            facts = json.loads(text)
            facts["limits"] = limits_lib.described(self.limits)
            answers[row] = metadata.to_json(facts).encode()
        return answers


def _ask(
    worker: Worker, call: SessionCall, caller: Caller, kind: int
) -> Arrays:
    """Runs a signature as a whole."""
    seconds = caller.seconds_left()
    name, inputs, outputs = call
    arrays = worker.model.call(name, inputs, outputs, seconds, kind)
    return dict(zip(outputs, arrays, strict=True))
