"""Write certification logs as one page that opens offline.

rs-keras report runs/gaussian.tsv runs/smoothmix.tsv -o report.html
"""

import argparse
from typing import TYPE_CHECKING

from rs_keras.cli import _logs as log_flags

if TYPE_CHECKING:
    from rs_keras.logs.log import CertificationLog
    from rs_keras.report import Thumbnails

HELP = "writes logs as one page: curves, table, gallery, guarantee"
EXAMPLE = "rs-keras report runs/gaussian.tsv runs/smoothmix.tsv -o report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    log_flags.add_logs(parser)
    parser.add_argument(
        "-o", "--out", required=True, metavar="FILE", help="the page, .html"
    )
    parser.add_argument("--title", help="of the page")
    parser.add_argument(
        "--radii",
        metavar="R,R,...",
        help="columns of the table (default: to the largest that is certified)",
    )
    parser.add_argument(
        "--data",
        metavar="DATASET[/SPLIT]",
        help="where the pictures come from (default: the data set named in "
        "the logs' settings)",
    )
    parser.add_argument("--data-dir", help="where tensorflow-datasets looks")
    parser.add_argument(
        "--max-images",
        type=int,
        default=1_000,
        metavar="N",
        help="pictures in the page; 0 for none (default: %(default)s)",
    )
    parser.add_argument(
        "--side-by-side",
        action="store_true",
        help="show logs of different sigma or different examples, which are "
        "then not compared example by example",
    )


def run(args: argparse.Namespace) -> None:
    from rs_keras._checks import check_count
    from rs_keras.report import write_report

    check_count("--max-images", args.max_images, 0)
    radii = None if args.radii is None else log_flags.radii_of(args.radii)
    logs = log_flags.read_certification_logs(args)
    thumbnails, note = _thumbnails(args, logs)
    size = write_report(
        logs,
        args.out,
        args.title,
        thumbnails,
        radii,
        args.side_by_side,
        note,
    )
    pictures = 0 if thumbnails is None else len(thumbnails.idx)
    print(f"{args.out}: {size / 1e6:.2f} MB, {pictures} pictures")


def _thumbnails(
    args: argparse.Namespace, logs: "list[CertificationLog]"
) -> "tuple[Thumbnails | None, str | None]":
    """Returns the pictures, or why there are none."""
    from rs_keras.report import Thumbnails
    from rs_keras.report.thumbnails import chosen_examples

    if not args.max_images:
        return None, None
    known = [log.settings.get("dataset") for log in logs]
    names = {str(name) for name in known if name is not None}
    if args.data is None and len(names) != 1:
        why = "name several data sets" if names else "do not name a data set"
        return None, f"No pictures: the logs' settings {why}."
    chosen = chosen_examples(logs[0], args.max_images)
    if args.data is not None:
        return Thumbnails.of_dataset(args.data, chosen, args.data_dir), None
    name = names.pop()
    try:
        found = Thumbnails.of_dataset(name, chosen, args.data_dir)
    except (ValueError, OSError) as error:
        return None, f"No pictures: {name} could not be read ({error})."
    return found, None
