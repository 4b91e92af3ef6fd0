"""Results with a row an image: length, indexing, iteration, data frames."""

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import Self

import numpy as np

# So many rows are printed; of more, the first ones.
SHOWN = 10


class Rows:
    """A result that can be indexed and iterated by image.

    A subclass gives `__len__` and `_take`. An index, too, gives a result of
    the same class: that of one image.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def _take(self, rows: np.ndarray) -> Self:
        """Returns the result of some rows, by their numbers."""
        raise NotImplementedError

    def __getitem__(self, key: Any) -> Self:
        rows = np.arange(len(self))[key]
        return self._take(np.atleast_1d(rows))

    def __iter__(self) -> Iterator[Self]:
        return (self[row] for row in range(len(self)))


def data_frame(
    columns: Mapping[str, np.ndarray], settings: Mapping[str, Any]
) -> Any:
    """Returns a `pandas.DataFrame` with the settings as its `attrs`.

    Args:
        columns: Arrays of one length.
        settings: Of the certifier.

    Raises:
        ImportError: If pandas is not installed; says how to install it.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "`to_pandas` needs pandas: pip install rs-keras[pandas]"
        ) from error
    frame = pandas.DataFrame(dict(columns))
    frame.attrs = dict(settings)
    return frame


def shortened(count: int, what: str) -> str:
    """Returns the line below the rows that are printed; empty for none left."""
    left = count - SHOWN
    return f"\n  ... and {left} more {what}" if left > 0 else ""
