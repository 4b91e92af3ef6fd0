"""Folders of runs."""

import fcntl
import os

import pytest

from rs_keras.trainers import recipes
from rs_keras.trainers.runs import training


def test_a_folder_that_another_process_trains_in_is_refused(tmp_path):
    """Nothing in it is touched."""
    recipe = recipes.get("fashion_mini", "gaussian", 0.5, epochs=1)
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError, match="by another process"):
            training.train(recipe, tmp_path, verbose=0)
    finally:
        os.close(handle)
    assert not list(tmp_path.iterdir())
