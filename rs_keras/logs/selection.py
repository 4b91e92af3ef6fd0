"""Which examples of a data set are certified, and under which seed."""

import json
import os
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras import distribution
from rs_keras._checks import check_count
from rs_keras.datasets.elements import ElementReader
from rs_keras.datasets.elements import elements_of
from rs_keras.datasets.elements import is_single
from rs_keras.datasets.elements import labels_in
from rs_keras.datasets.elements import parts_of
from rs_keras.logs.file_format import read_settings
from rs_keras.noise.draws import example_seed
from rs_keras.noise.draws import fresh_seeds


@dataclass(frozen=True)
class Selection:
    """The examples of a data set that a log holds."""

    dataset: tf.data.Dataset | Iterable
    skip: int = 1
    max_examples: int | None = None
    shard: tuple[int, int] | None = None
    seed: int | str | None = None
    name: str | None = None
    progress: bool = False
    read: ElementReader = ElementReader()

    def __post_init__(self) -> None:
        check_count("skip", self.skip)
        if self.max_examples is not None:
            check_count("max_examples", self.max_examples)

    def examples(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (image [H, W, C], label) of all examples."""
        for element in elements_of(self.dataset):
            images, targets, _ = self.read(element)
            yield from zip(images, labels_in(targets), strict=True)

    def select(
        self, examples: Iterable[tuple[np.ndarray, np.ndarray]]
    ) -> Iterator[tuple[int, np.ndarray, int]]:
        """Yields (idx, image [1, H, W, C], label) of those to examine."""
        number, count = self.shard or (0, 1)
        chosen = islice(enumerate(examples), 0, None, self.skip)
        own = islice(islice(chosen, self.max_examples), number, None, count)
        for idx, (image, label) in own:
            yield idx, image[None], int(label)

    def total(self) -> int | None:
        """Returns how many `select` yields, where no pass is needed for it."""
        total = self.max_examples
        if isinstance(self.dataset, tf.data.Dataset):
            size = int(self.dataset.cardinality())
            single = is_single(*parts_of(self.dataset.element_spec)[:2])
            if size >= 0 and single:
                total = min(-(-size // self.skip), total or size)
        if total is None or self.shard is None:
            return total
        return len(range(self.shard[0], total, self.shard[1]))

    def shard_setting(self) -> dict[str, Any]:
        """Returns the shard as the settings of a log have it, checked."""
        if self.shard is None:
            return {}
        number, count = self.shard
        count = check_count("shard[1]", count)
        if not 0 <= number < count:
            raise ValueError(
                "`shard` must be (i, m) with 0 <= i < m. "
                f"Received: {self.shard}"
            )
        if self.seed is None:
            raise ValueError(
                "`seed` must be given for a shard: all workers have to draw "
                "under the same. Received: seed=None"
            )
        return {"shard": [number, count]}

    def root_seed(
        self,
        path: str | os.PathLike[str],
        strategy: tf.distribute.Strategy | None,
    ) -> Any:
        """Returns the seed given, that of a log to resume, or a fresh one.

        Of several workers, which make each draw together, the chief's.
        """
        if self.seed == "keyed":
            return self.seed
        if self.seed is not None:
            seed = check_count("seed", self.seed, -(2**63))
            # Refuses one that does not fit before a log is written.
            example_seed(seed, 0)
            return seed
        kept = read_settings(path).get("seed")
        own = fresh_seeds(1)[0].tolist() if kept is None else kept
        sent = distribution.from_chief(strategy, json.dumps(own).encode())
        return json.loads(sent or b"null")


def selected(
    dataset: tf.data.Dataset | Iterable,
    skip: int = 1,
    max_examples: int | None = None,
    shard: tuple[int, int] | None = None,
) -> Iterator[tuple[int, np.ndarray, int]]:
    """Yields (idx, image [1, H, W, C], label) of every `skip`-th example.

    Args:
        dataset: Yields (image, label), batched or not; a label may be a dict
            with `label`.
        skip: See `certify_dataset`.
        max_examples: See `certify_dataset`.
        shard: See `certify_dataset`.

    Raises:
        ValueError: If the data set yields no such pairs, or an argument is out
            of range.

    Example:

    >>> import numpy as np
    >>> from rs_keras.logs import selected
    >>> data = [(np.zeros([4, 4, 1]), label) for label in (7, 2, 1, 0, 4)]
    >>> [(idx, label) for idx, image, label in selected(data, skip=2)]
    [(0, 7), (2, 1), (4, 4)]
    """
    examined = Selection(dataset, skip, max_examples, shard)
    yield from examined.select(examined.examples())
