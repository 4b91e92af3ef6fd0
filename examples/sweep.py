"""Sweeps two hyper-parameters of SmoothMix with Keras Tuner.

    python examples/sweep.py

Each trial trains a recipe and certifies images held out from the training
split, so the test images are not used. The folder runs/sweep stores the trials,
from which an interrupted search continues, and the best recipe as a file for
`rs-keras train --recipe`.
"""

from pathlib import Path

from rs_keras.trainers import tuning
from rs_keras.trainers.tuning import search_spaces
from rs_keras.trainers.tuning import sweeps

FOLDER = Path("runs/sweep")


def main():
    hypermodel = tuning.SmoothingHyperModel(
        "smoothmix",
        "fashion_mini",
        sigma=0.25,
        # Names and values as in a recipe; all other values are the recipe's.
        space={
            "eta": search_spaces.Log(1.0, 10.0),
            "learning_rate": search_spaces.Log(0.003, 0.03),
        },
        epochs=2,
        validation=40,
        n=200,
        # Small, for a quick example; leave these out in a real sweep.
        overrides={
            "limit": 1_024,
            "batch_size": 64,
            "num_noise": 2,
            "steps": 2,
        },
    )
    tuner = tuning.tuner(
        hypermodel, "random", trials=3, objective="val_acr", directory=FOLDER
    )
    tuner.search(verbose=0)
    print(sweeps.table(sweeps.results(tuner)).expandtabs(14))
    best = tuning.best_recipe(tuner)
    best.save(FOLDER / "best.json")
    print(
        f"best: eta={best.trainer['eta']:.2f}, "
        f"learning_rate={best.learning_rate(0):.4f}; train it with\n"
        f"  rs-keras train --recipe {FOLDER / 'best.json'}"
    )


if __name__ == "__main__":
    main()
