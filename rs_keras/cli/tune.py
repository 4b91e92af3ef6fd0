"""Search for a method's hyper-parameters with Keras Tuner.

rs-keras tune mnist --method smoothmix --sigma 1.0 --trials 20 --epochs 10
"""

import argparse
import sys
from pathlib import Path

from rs_keras.cli import train

HELP = "searches for hyper-parameters with Keras Tuner; resumes"
EXAMPLE = (
    "rs-keras tune mnist --method smoothmix --sigma 1.0 --trials 20 "
    "--epochs 10 --tuner bayesian"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATASET", help="as in `train`")
    parser.add_argument("--method", required=True, help="as in `train`")
    parser.add_argument(
        "--sigma",
        type=float,
        required=True,
        help="of the noise, pixels in [0, 1]",
    )
    parser.add_argument(
        "--trials",
        type=int,
        default=20,
        help="at most so many (default: %(default)s)",
    )
    parser.add_argument(
        "--epochs",
        type=int,
        help="of a trial; drops of the learning rate and warm-ups keep their "
        "share (default: the recipe's)",
    )
    parser.add_argument(
        "--tuner",
        default="bayesian",
        help="random, bayesian or hyperband (default: %(default)s)",
    )
    parser.add_argument(
        "--objective",
        default="val_acr",
        help="val_acr, val_capped_acr or val_certified_accuracy_r000, r025, "
        "r050, r075, r100 (default: %(default)s)",
    )
    parser.add_argument(
        "--cap",
        type=float,
        help="largest radius that counts for val_capped_acr (default: 2 sigma)",
    )
    parser.add_argument(
        "--validation",
        type=int,
        default=200,
        metavar="N",
        help="training examples held out to certify (default: %(default)s)",
    )
    parser.add_argument(
        "--n",
        type=int,
        default=1_000,
        help="draws an example of these (default: %(default)s)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value of every trial's recipe, as in `train`; what the "
        "search varies is varied all the same",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the tuner's choices (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="the search's folder, continued if it is there (default: "
        "runs/DATASET_METHOD_SIGMA_sweep)",
    )
    parser.add_argument("--data-dir", help="where tensorflow-datasets looks")


def run(args: argparse.Namespace) -> int | None:
    import keras_tuner

    from rs_keras.trainers.tuning import hypermodel as tuning
    from rs_keras.trainers.tuning import sweeps

    model = tuning.SmoothingHyperModel(
        args.method,
        args.data,
        args.sigma,
        epochs=args.epochs,
        validation=args.validation,
        n=args.n,
        cap=args.cap,
        data_dir=args.data_dir,
        overrides=dict(train.assignment(text) for text in args.set),
    )
    folder = train.folder_of(args.out, model.base, "_sweep")
    tuner = tuning.tuner(
        model, args.tuner, args.trials, args.objective, folder, args.seed
    )
    try:
        tuner.search(verbose=2)
    except keras_tuner.errors.FatalError as error:
        raise ValueError(f"the search stopped: {error}") from error
    finally:
        if not tuning.is_worker():
            written = sweeps.write(tuner, folder)
    if tuning.is_worker():
        return None
    print(sweeps.table(sweeps.results(tuner)))
    print("\n".join(written))
    try:
        tuning.best_recipe(tuner)
    except ValueError as error:
        print(f"rs-keras tune: {error}", file=sys.stderr)
        return 1
    best = Path(folder) / sweeps.BEST
    print(
        f"Train the best with\n  rs-keras train --recipe {best} --out "
        f"{folder}/best"
    )
    return None
