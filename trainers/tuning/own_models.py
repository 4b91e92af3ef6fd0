"""Sweeps of a user's own trainers: `build(hp)`, certified in each trial."""

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import keras
import keras_tuner
import tensorflow as tf

from rs_keras._checks import check_count
from rs_keras.logs.selection import selected
from rs_keras.trainers.callbacks import CertifyCallback

# What a trial's certified accuracies are given at; 0 is the clean accuracy.
RADII = (0.0, 0.25, 0.5, 0.75, 1.0)
CLEAN = "val_certified_accuracy_r000"


class CertifiedTrials(keras_tuner.HyperModel):
    """Trials that are certified after the first epoch and the last.

    Always the same images with the same noise, so that trials differ by their
    hyper-parameters alone.

    Args:
        name: Of the hyper-model.
        validation: Images and labels, as in `certify_dataset`.
        n: Draws that bound the probability of a class, >= 1.
        cap: Of `val_capped_acr`; None leaves it out.
        sigma: Of the noise; None for that of the trainer.

    Attributes:
        objectives: The names that a tuner can maximise.
    """

    def __init__(
        self,
        name: str,
        validation: tf.data.Dataset | Iterable,
        n: int,
        cap: float | None,
        sigma: float | None = None,
    ) -> None:
        super().__init__(name=name)
        self.n = check_count("n", n)
        self.cap = cap
        self.sigma = sigma
        self.validation = [
            (image[0], label) for _, image, label in selected(validation)
        ]
        capped = () if cap is None else ("val_capped_acr",)
        self.objectives = ("val_acr", *capped, *self._certify(1).radii)

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
            *args: As in `keras.Model.fit`.
            **kwargs: As in `keras.Model.fit`.

        Raises:
            keras_tuner.errors.FailedTrialError: If the loss is not finite any
                more, or the trial does not fit into the memory.
        """
        certify = self._certify(max(1, kwargs.get("epochs", 1)))
        theirs = list(kwargs.pop("callbacks", None) or ())
        try:
            return model.fit(*args, callbacks=[certify, *theirs], **kwargs)
        except (FloatingPointError, tf.errors.ResourceExhaustedError) as error:
            raise keras_tuner.errors.FailedTrialError(str(error)) from error

    def _certify(self, every: int) -> CertifyCallback:
        """Returns the callback of one training, with nothing remembered."""
        return CertifyCallback(
            self.validation,
            every,
            self.n,
            RADII,
            cap=self.cap,
            sigma=self.sigma,
        )


class CertifiedHyperModel(CertifiedTrials):
    """A user's own `build(hp)`, certified after each trial, for any tuner.

    A trial trains what `build` returns on the data of `tuner.search` and
    certifies `validation` after the first epoch and the last, always with the
    same noise. `objectives` are the names that a tuner can maximise.
    `SmoothingHyperModel` does so with the methods and data of this package.

    Args:
        build: From Keras Tuner's hyper-parameters to a compiled trainer, or
            any compiled Keras model, which then needs `sigma`.
        validation: Images and labels to certify, as in `certify_dataset`; not
            those that are trained on.
        n: Draws that bound the probability of a class, >= 1.
        cap: Of `val_capped_acr`; None leaves it out.
        sigma: Of the noise; None for that of the trainer.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import keras_tuner
    >>> import numpy as np
    >>> from rs_keras import models
    >>> from rs_keras.trainers import SGD, Gaussian
    >>> from rs_keras.trainers.tuning import CertifiedHyperModel
    >>> def build(hp):
    ...     trainer = Gaussian(models.lenet(), sigma=0.25)
    ...     trainer.compile(optimizer=SGD(hp.Float("rate", 0.001, 0.1)))
    ...     return trainer
    >>> images, labels = np.zeros([4, 28, 28, 1]), np.zeros(4, int)
    >>> model = CertifiedHyperModel(build, (images, labels), n=100)
    >>> model.objectives[:2]
    ('val_acr', 'val_certified_accuracy_r000')
    >>> tuner = keras_tuner.RandomSearch(
    ...     model, keras_tuner.Objective("val_acr", "max"), max_trials=2,
    ...     directory="sweep", seed=1)
    >>> sorted(tuner.oracle.hyperparameters.values)  # and then tuner.search()
    ['rate']
    """

    def __init__(
        self,
        build: Callable[[keras_tuner.HyperParameters], keras.Model],
        validation: tf.data.Dataset | Iterable,
        n: int = 1_000,
        cap: float | None = None,
        sigma: float | None = None,
    ) -> None:
        if not callable(build):
            raise ValueError(
                "`build` must be a function of Keras Tuner's hyper-parameters. "
                f"Received: build={build!r}"
            )
        name = getattr(build, "__name__", "build")
        super().__init__(name, validation, n, cap, sigma)
        self.function = build

    def build(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """Returns the user's model of a trial."""
        return self.function(hp)
