"""`rs-keras tune`: hyper-parameter search with Keras Tuner."""

import argparse
import contextlib
import sys

import keras_tuner

from rs_keras._locks import only_writer
from rs_keras.cli import _photographs
from rs_keras.cli import _runs
from rs_keras.trainers.tuning import hypermodel
from rs_keras.trainers.tuning import sweeps


def run(args: argparse.Namespace) -> int | None:
    model = hypermodel.SmoothingHyperModel(
        args.method,
        _photographs.data_name(args),
        args.sigma,
        epochs=args.epochs,
        validation=args.validation,
        n=args.n,
        cap=args.cap,
        data_dir=args.data_dir,
        overrides=_runs.assignments(args.set),
    )
    folder = _runs.folder_of(args.out, model.base, "_sweep")
    tuner = hypermodel.tuner(
        model, args.tuner, args.trials, args.objective, folder, seed=args.seed
    )
    with contextlib.ExitStack() as stack:
        if not hypermodel.is_worker():
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(only_writer(folder))
        try:
            tuner.search(verbose=2)
        except keras_tuner.errors.FatalError as error:
            raise ValueError(f"the search stopped: {error}") from error
        finally:
            if not hypermodel.is_worker():
                written = sweeps.write(tuner, folder)
    if hypermodel.is_worker():
        return None
    print(sweeps.table(sweeps.results(tuner)))
    print("\n".join(written))
    try:
        hypermodel.best_recipe(tuner)
    except ValueError as error:
        print(f"rs-keras tune: {error}", file=sys.stderr)
        return 1
    print(
        f"Train the best with\n  rs-keras train --recipe "
        f"{folder / sweeps.BEST} --out {folder}/best"
    )
    return None
