"""Logs of runs with known radii, in a results folder."""

from rs_keras.logs import LogWriter
from rs_keras.trainers.reproduction import mnist as reproduction
from rs_keras.trainers.reproduction import pairs as reproduction_pairs
from rs_keras.trainers.reproduction import results
from rs_keras.trainers.reproduction import tables


def write_run(root, run, radii, epochs=9, n=100_000, skip=10):
    """A run's log, by number of the image; all are certified rightly."""
    folder = reproduction.folder_of(root, 1.0, run)
    folder.mkdir(parents=True)
    reproduction.recipe_of(run, 1.0, epochs=epochs).save(folder / "recipe.json")
    for bound in reproduction.BOUNDS:
        settings = {"sigma": 1.0, "n": n, "skip": skip, "dataset": "mnist/test"}
        with LogWriter(folder / f"{bound}.tsv", settings) as writer:
            for idx, radius in radii.items():
                writer.write(idx, 3, 3, radius, 1.0)
    return folder


IMAGES = range(0, 1_200, 10)


def constant(radius):
    return dict.fromkeys(IMAGES, radius)


def table_of(root):
    runs = results.read_methods(root, 1.0)
    return tables.table(runs)


def order_of(root):
    return reproduction_pairs.order(results.read_methods(root, 1.0))


def ablations_of(root):
    runs = results.read_ablations(root, 1.0)
    return reproduction_pairs.ablations(runs)


def pair_of(root, first, second, difference):
    runs = [results.read(root, 1.0, name) for name in (first, second)]
    return reproduction_pairs.pair(*runs, difference)
