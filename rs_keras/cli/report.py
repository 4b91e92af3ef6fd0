"""`rs-keras report`: certification logs as one page that opens offline."""

import argparse

from rs_keras._checks import check_count
from rs_keras.cli import _logs
from rs_keras.datasets.registry import REGISTRY
from rs_keras.logs.log import CertificationLog
from rs_keras.logs.robustness import is_attack
from rs_keras.report import Thumbnails
from rs_keras.report import write_report
from rs_keras.report.thumbnails import chosen_examples


def run(args: argparse.Namespace) -> None:
    check_count("--max-images", args.max_images, 0)
    logs = _logs.read_logs(args)
    certified = [log for log in logs if not is_attack(log)]
    thumbnails, note = _thumbnails(args, certified)
    size = write_report(
        logs,
        args.out,
        args.title,
        thumbnails,
        radii=args.radii,
        side_by_side=args.side_by_side,
        note=note,
    )
    pictures = 0 if thumbnails is None else len(thumbnails.idx)
    print(f"{args.out}: {size / 1e6:.2f} MB, {pictures} pictures")


def _thumbnails(
    args: argparse.Namespace, logs: list[CertificationLog]
) -> tuple[Thumbnails | None, str | None]:
    """Returns the pictures, or why there are none."""
    if not args.max_images or not logs:
        return None, None
    chosen = chosen_examples(logs[0], args.max_images)
    if args.data is not None:
        return Thumbnails.of_dataset(args.data, chosen, args.data_dir), None
    names = {log.settings.get("dataset") for log in logs} - {None}
    if len(names) != 1:
        why = "name several data sets" if names else "do not name a data set"
        return None, f"No pictures: the logs' settings {why}."
    name = str(names.pop())
    if name.partition("/")[0] not in REGISTRY:
        # Somebody else's log may name any file of this machine.
        return None, (
            f"No pictures: the settings name {name}, which is no public data "
            "set; --data gives a report pictures of your own files."
        )
    try:
        return Thumbnails.of_dataset(name, chosen, args.data_dir), None
    except (ValueError, OSError) as error:
        return None, f"No pictures: {name} could not be read ({error})."
