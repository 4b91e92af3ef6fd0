"""Logs and pictures for the tests of the report."""

import numpy as np

from rs_keras import CertificationLog
from rs_keras.report import Thumbnails

SETTINGS = {
    "sigma": 0.5,
    "noise": "float",
    "n0": 100,
    "n": 1000,
    "alpha": 0.001,
    "bound": "clopper_pearson",
    "runner_up": False,
    "dataset": "fashion_mini/test",
}
NASTY = "<script>window.hit = 1</script>"


def log_of(name="one", rows=None, **settings):
    """A log of rows (idx, label, predict, radius)."""
    if rows is None:
        # 2 right (0.9, 0.25), 1 wrong (0.4), 1 abstained.
        rows = [(0, 1, 1, 0.9), (3, 2, 1, 0.4), (5, 0, 0, 0.25), (8, 1, -1, 0)]
    idx, label, predict, radius = np.array(rows, float).T
    return CertificationLog(
        idx=idx,
        label=label,
        predict=predict,
        radius=radius,
        correct=label == predict,
        time=np.ones(len(idx)),
        name=name,
        settings=SETTINGS | settings,
    )


def pictures_of(log, class_names=("zero", "one", "two"), shape=(4, 6, 1)):
    """One picture an example: all pixels of picture i are i + 1."""
    level = np.arange(1, len(log) + 1, dtype=np.uint8)
    return Thumbnails(
        pictures=np.broadcast_to(
            level[:, None, None, None], (len(log), *shape)
        ),
        idx=log.idx,
        label=log.label,
        class_names=class_names,
        image_shape=shape,
    )
