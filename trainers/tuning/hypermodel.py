"""Sweeps with Keras Tuner over the hyper-parameters of a method.

Example:

    from rs_keras.trainers import tuning

    model = tuning.SmoothingHyperModel(
        "smoothmix", "mnist", sigma=1.0, epochs=10)
    tuner = tuning.tuner(model, "bayesian", trials=20, directory="runs/sweep")
    tuner.search()
    best = tuning.best_recipe(tuner)

The search goes on where it was when the same call is made again, and runs on
several machines in Keras Tuner's own way: one process with KERASTUNER_TUNER_ID
set to "chief", the others to "tuner0", "tuner1", ..., all with
KERASTUNER_ORACLE_IP and KERASTUNER_ORACLE_PORT set to the chief's, and one
directory that all see.
"""

import json
import os
from collections.abc import Iterable
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import keras_tuner
import tensorflow as tf

from rs_keras import datasets
from rs_keras._atomic_files import written_whole
from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras.logs.file_format import differences
from rs_keras.trainers import recipes
from rs_keras.trainers.recipes.recipe import Recipe
from rs_keras.trainers.tuning import search_spaces
from rs_keras.trainers.tuning.own_models import CertifiedTrials

TUNERS = ("random", "bayesian", "hyperband")
_SETTINGS = "sweep.json"


class SmoothingHyperModel(CertifiedTrials):
    """A method of this package, for any tuner of Keras Tuner.

    A trial trains a recipe and certifies, after the first epoch and the last,
    images that are held out from the training split: always the same ones with
    the same noise, so that trials differ by their hyper-parameters alone. The
    test split is not touched: what is chosen on it cannot be measured on it.
    See `CertifyCallback` for the names of what can be the objective.

    A trial whose loss is not finite any more, or that does not fit into the
    memory, has failed; any other error ends the search.

    Args:
        method: One of `recipes.methods(dataset)`.
        dataset: As in `rs_keras.datasets.load`; one with a training split.
        sigma: Of the noise, > 0.
        space: What is varied, see
            `rs_keras.trainers.tuning.search_spaces`; None for
            the method's own space. A function gets Keras Tuner's
            hyper-parameters and returns values of the recipe by name.
        epochs: Of a trial, >= 1; the drops of the learning rate and the
            warm-ups of the recipe keep their share. None for the recipe's own
            number.
        validation: How many examples of the training split are held out (see
            `datasets.held_out`), >= 1; or a data set of pairs, of which all
            are certified.
        n: Draws that bound the probability of a class, >= 1.
        cap: Of `val_capped_acr`; None for 2 sigma.
        data_dir: As in `rs_keras.datasets.load`.
        overrides: Other values of the recipe, as in `Recipe.replace`. What the
            space holds is varied all the same: for a value that stays, leave
            it out of `space`.

    Raises:
        ValueError: If an argument is out of range, or examples are to be held
            out from a data set that does not fit into memory.

    Example:

    >>> import keras_tuner
    >>> from rs_keras.trainers import tuning
    >>> model = tuning.SmoothingHyperModel(
    ...     "smoothmix", "fashion_mini", sigma=0.5, validation=100)
    >>> hp = keras_tuner.HyperParameters()
    >>> hp.Fixed("eta", 3.0), model.recipe(hp).trainer["eta"]
    (3.0, 3.0)
    >>> model.objectives[:3]
    ('val_acr', 'val_capped_acr', 'val_certified_accuracy_r000')
    """

    def __init__(
        self,
        method: str,
        dataset: str,
        sigma: float,
        space: search_spaces.Space | None = None,
        epochs: int | None = None,
        validation: int | tf.data.Dataset | Iterable = 200,
        n: int = 1_000,
        cap: float | None = None,
        data_dir: str | Path | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        base = recipes.get(dataset, method, sigma, data_dir)
        if epochs is not None:
            base = base.shortened(epochs)
        self.base = base.replace(**(overrides or {}))
        self.space = (
            search_spaces.default(self.base) if space is None else space
        )
        self.data_dir = data_dir
        cap = 2 * self.base.sigma if cap is None else cap
        # Checks the names of the space before any work is done.
        self.recipe(keras_tuner.HyperParameters())
        self.held_out = 0
        if isinstance(validation, int):
            self.held_out = check_count("validation", validation)
            if validation >= self._size():
                raise ValueError(
                    f"`validation` must be < {self._size()}, the number of "
                    f"training examples. Received: validation={validation}"
                )
            validation = zip(
                *datasets.held_out(dataset, validation, data_dir), strict=True
            )
        name = f"{dataset}_{method}_{sigma}"
        super().__init__(name, validation, n, cap)

    def recipe(self, hp: keras_tuner.HyperParameters) -> Recipe:
        """Returns the recipe that a trial trains, on all training examples."""
        return self.base.replace(
            **search_spaces.sample(self.space, hp, self.base)
        )

    def declare_hyperparameters(self, hp: keras_tuner.HyperParameters) -> None:
        """Declares the varied values to the tuner, and builds nothing."""
        self.recipe(hp)

    def build(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """Returns the trainer of a trial, compiled."""
        try:
            return self.recipe(hp).build(self.data_dir)
        except ValueError as error:
            # A value that no trial can have is not a failed trial.
            raise keras_tuner.errors.FatalValueError(str(error)) from error

    def fit(
        self,
        hp: keras_tuner.HyperParameters,
        model: keras.Model,
        *args: Any,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Trains and certifies; called by the tuner.

        Args:
            hp: Of the trial.
            model: From `build`.
            *args: Training data, as in `keras.Model.fit`; by default the data
                set's, without what is held out.
            **kwargs: As in `keras.Model.fit`.
        """
        recipe = self.recipe(hp)
        kwargs.setdefault("epochs", recipe.epochs)
        theirs = list(kwargs.pop("callbacks", None) or ())
        try:
            if not args and kwargs.get("x") is None:
                kwargs |= self._data(recipe, kwargs.get("initial_epoch", 0))
            callbacks = [*recipe.callbacks(), *theirs]
            return super().fit(hp, model, *args, callbacks=callbacks, **kwargs)
        except keras_tuner.errors.FailedTrialError:
            raise
        except Exception as error:
            raise keras_tuner.errors.FatalRuntimeError(str(error)) from error

    def settings(self) -> dict[str, Any]:
        """Returns the settings that all trials of a search share, as JSON.

        Example:

        >>> from rs_keras.trainers import tuning
        >>> model = tuning.SmoothingHyperModel(
        ...     "gaussian", "fashion_mini", sigma=0.5, validation=100)
        >>> model.settings()["space"]["num_noise"], model.settings()["cap"]
        ('Choice(values=(1, 2, 4))', 1.0)
        """
        recipe = self.base.to_json()
        del recipe["sources"]
        space: Any = "own function"
        if not callable(self.space):
            space = {name: repr(span) for name, span in self.space.items()}
        return {
            "recipe": recipe,
            "space": space,
            "examples": [self.held_out, len(self.validation)],
            "n": self.n,
            "cap": self.cap,
        }

    def _data(self, recipe: Recipe, first: int) -> dict[str, Any]:
        count = self._size() - self.held_out
        if recipe.limit is not None:
            count = min(count, recipe.limit)
        return {
            "x": datasets.stream(
                recipe.dataset,
                recipe.batch_size,
                data_dir=self.data_dir,
                seed=recipe.seed,
                first_epoch=first,
                limit=recipe.limit,
                held_out=self.held_out,
            ),
            "steps_per_epoch": -(-count // recipe.batch_size),
            "shuffle": False,
        }

    def _size(self) -> int:
        return datasets.steps(self.base.dataset, 1, self.data_dir)


def tuner(
    hypermodel: SmoothingHyperModel,
    kind: str = "bayesian",
    trials: int = 20,
    objective: str = "val_acr",
    directory: str | Path = "runs/sweep",
    seed: int = 0,
    **kwargs: Any,
) -> keras_tuner.Tuner:
    """Returns a tuner of Keras Tuner that keeps its state in a directory.

    Unlike Keras Tuner's own default, it does not give up after three trials
    that failed one after the other: at a high learning rate many diverge.

    Args:
        hypermodel: What is searched.
        kind: "random", "bayesian" (Gaussian processes) or "hyperband" (many
            short trials, the better ones longer, up to the recipe's epochs).
        trials: At most so many, >= 1.
        objective: What is to be large; see `CertifyCallback`.
        directory: A search that is there is continued; it must be of the same
            settings.
        seed: Of the tuner's choices, >= 0.
        **kwargs: As in the tuner's class.

    Raises:
        ValueError: If an argument is out of range, or the directory holds a
            search of other settings (names each).

    Example:

    >>> from rs_keras.trainers import tuning
    >>> model = tuning.SmoothingHyperModel(
    ...     "smoothmix", "fashion_mini", sigma=0.5, validation=10)
    >>> tuner = tuning.tuner(model, "bayesian", trials=20, directory="sweep")
    >>> sorted(tuner.oracle.hyperparameters.values)  # and then tuner.search()
    ['eta', 'learning_rate', 'one_step_adversary', 'steps']
    >>> tuning.tuner(model, "grid")
    Traceback (most recent call last):
    ValueError: `kind` must be one of random, bayesian, hyperband. ...
    """
    check_choice("kind", kind, TUNERS)
    check_count("trials", trials)
    check_count("seed", seed, 0)
    check_choice("objective", objective, hypermodel.objectives)
    directory = Path(directory)
    settings = {
        **hypermodel.settings(),
        "tuner": kind,
        "objective": objective,
        "seed": seed,
    }
    _check_same(directory / _SETTINGS, settings)
    arguments = {
        "hypermodel": hypermodel,
        "objective": keras_tuner.Objective(objective, "max"),
        # A seed of 0 would be taken for none.
        "seed": seed + 1,
        "max_consecutive_failed_trials": trials + 1,
        "directory": directory,
        "project_name": "trials",
        **kwargs,
    }
    if kind == "hyperband":
        # It takes no number of trials.
        epochs = hypermodel.base.epochs
        hyperband = keras_tuner.Hyperband(max_epochs=epochs, **arguments)
        hyperband.oracle.max_trials = trials
        return hyperband
    random = kind == "random"
    cls = (
        keras_tuner.RandomSearch if random else keras_tuner.BayesianOptimization
    )
    return cls(max_trials=trials, **arguments)


def _check_same(path: Path, settings: dict[str, Any]) -> None:
    """Writes a search's settings, or raises if others are there."""
    settings = json.loads(json.dumps(settings))
    if not path.exists():
        with written_whole(path) as temporary:
            temporary.write_text(json.dumps(settings, indent=2) + "\n")
        return
    old = json.loads(path.read_text(encoding="utf-8"))
    differing = differences(old, settings)
    if differing:
        raise ValueError(
            f"`directory` holds a search of other settings: {differing}. "
            f"Received: {path.parent}"
        )


def is_worker() -> bool:
    """Whether this process runs trials that another one chooses.

    As Keras Tuner decides it; a worker has no results of its own.

    Example:

    >>> import os
    >>> from rs_keras.trainers.tuning import hypermodel as tuning
    >>> tuning.is_worker()
    False
    >>> os.environ["KERASTUNER_ORACLE_IP"] = "chief.example"
    >>> os.environ["KERASTUNER_TUNER_ID"] = "tuner0"
    >>> tuning.is_worker()
    True
    >>> for name in ("KERASTUNER_ORACLE_IP", "KERASTUNER_TUNER_ID"):
    ...     del os.environ[name]
    """
    name = os.environ.get("KERASTUNER_TUNER_ID", "")
    return "KERASTUNER_ORACLE_IP" in os.environ and "chief" not in name


def best_recipe(tuner: keras_tuner.Tuner) -> Recipe:
    """Returns the recipe of the best trial, on all training examples.

    Args:
        tuner: As from `tuner`, after its search.

    Raises:
        ValueError: If no trial was completed; says why the last one failed.

    Example:

    >>> from rs_keras.trainers.tuning import search_spaces
    >>> from rs_keras.trainers import tuning
    >>> model = tuning.SmoothingHyperModel(
    ...     "gaussian", "fashion_mini", sigma=0.5, epochs=1, validation=10,
    ...     space={"learning_rate": search_spaces.Log(0.01, 0.02)}, n=100,
    ...     overrides={"limit": 500})
    >>> tuner = tuning.tuner(model, "random", trials=1, directory="sweep")
    >>> tuner.search(verbose=0)
    >>> best = tuning.best_recipe(tuner)
    >>> 0.01 <= best.optimizer["learning_rate"] <= 0.02
    True
    """
    # Keras Tuner fills up with failed ones.
    best = tuner.oracle.get_best_trials(1)
    if not best or best[0].status != "COMPLETED":
        failed = [t.message for t in tuner.oracle.trials.values() if t.message]
        why = last_line(failed[-1]) if failed else "none was run"
        raise ValueError(f"no trial was completed: {why}")
    return tuner.hypermodel.recipe(best[0].hyperparameters)


def last_line(message: str | None) -> str:
    r"""Returns the last line of a traceback; empty for none.

    Example:

    >>> from rs_keras.trainers.tuning import hypermodel as tuning
    >>> tuning.last_line("Traceback ...\nValueError: too large\n")
    'ValueError: too large'
    """
    lines = (message or "").strip().splitlines()
    return lines[-1] if lines else ""
