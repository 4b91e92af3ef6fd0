"""Checks what servers answer, and computes the verdicts from their counts.

An answer is evidence, not truth. Labels, bounds and radii are computed here,
by the library's own rule; those that a server says itself only tell whether it
works. What no count of this many draws can be is refused before it is used.
"""

from collections.abc import Callable
from collections.abc import Sequence

import numpy as np

from rs_keras.certification.spec import CertifySpec
from rs_keras.certification.voting import decide_label
from rs_keras.certification.voting import vote_certificate
from rs_keras.serving.client.served_model import ServedModel
from rs_keras.serving.errors import WrongAnswer

Outputs = dict[str, np.ndarray]
# From the outputs of a request and their sender to outputs that may be used.
Check = Callable[[Outputs, str], Outputs]

# Two machines' rounding of the same float64 formula: of a fixed part, and of
# tails whose logarithm is a sum of terms as large as the number of votes.
_RTOL = 1e-9
_RTOL_OF_A_VOTE = 2.0**-48
_ATOL = 1e-12


def certificate(
    model: ServedModel,
    spec: CertifySpec,
    selection: np.ndarray,
    counts: np.ndarray,
    n: np.ndarray,
) -> Outputs:
    """Returns the certificate that votes are worth: label, radius, p_lower."""
    label, radius, p_lower = vote_certificate(
        selection, counts, spec, model.smoothing, n
    )
    return {
        "label": label.numpy(),
        "radius": radius.numpy(),
        "p_lower": p_lower.numpy(),
    }


def prediction(
    model: ServedModel, counts: np.ndarray, n: int, alpha: float
) -> Outputs:
    """Returns what the votes of n draws predict: label and p_value."""
    label, p_value = decide_label(counts, alpha, n, model.smoothing.distance)
    return {"label": label.numpy(), "p_value": p_value.numpy()}


def check_votes(
    server: str, outputs: Outputs, asked: Sequence[int], name: str = "counts"
) -> None:
    """Refuses votes that `asked` draws, one number a row, cannot give.

    Raises:
        WrongAnswer: If a count is negative, or a row has more votes than
            draws. It may have fewer: a draw whose logits are not finite votes
            for no class.
    """
    # Python's integers: a sum of int64 may wrap.
    rows = outputs[name].tolist()
    for votes, wanted in zip(rows, asked, strict=True):
        if min(votes) < 0 or sum(votes) > wanted:
            raise WrongAnswer(
                f"{server} was asked for {wanted} draws and answers with "
                f"{name}={votes}: no such answer can be counted",
                server=server,
            )


def check_draws(server: str, outputs: Outputs, asked: Sequence[int]) -> None:
    """Refuses an answer about other numbers of draws than were asked for."""
    for row, (drawn, wanted) in enumerate(
        zip(outputs["n"].tolist(), asked, strict=True)
    ):
        if drawn == 0:
            raise WrongAnswer(
                f"{server} refuses image {row} of a request that was checked "
                "here: client and export do not agree about what an image is",
                server=server,
            )
        if drawn != wanted:
            raise WrongAnswer(
                f"{server} was asked for {wanted} draws and answers with "
                f"n={drawn}",
                server=server,
            )


def certified(model: ServedModel, images: np.ndarray) -> Check:
    """Returns the check of an answer to `certify`."""

    def check(outputs: Outputs, server: str) -> Outputs:
        spec = model.certify_spec()
        n0, n = ([draws] * len(images) for draws in (spec.n0, spec.n))
        check_draws(server, outputs, n)
        check_votes(server, outputs, n)
        check_votes(server, outputs, n0, "selection_counts")
        _check_seeds(server, outputs, images)
        own = certificate(
            model,
            spec,
            outputs["selection_counts"],
            outputs["counts"],
            outputs["n"],
        )
        return _agreed(server, outputs, own)

    return check


def predicted(model: ServedModel, images: np.ndarray) -> Check:
    """Returns the check of an answer to `predict`."""

    def check(outputs: Outputs, server: str) -> Outputs:
        draws = model.metadata["predict_n"]
        n = [draws] * len(images)
        check_draws(server, outputs, n)
        check_votes(server, outputs, n)
        _check_seeds(server, outputs, images)
        own = prediction(
            model, outputs["counts"], draws, model.metadata["alpha"]
        )
        return _agreed(server, outputs, own)

    return check


def _check_seeds(server: str, outputs: Outputs, images: np.ndarray) -> None:
    """Refuses a seed that images which differ by 1/255 or more share."""
    seen: dict[bytes, bytes] = {}
    for image, seed in zip(images, outputs["seed"], strict=True):
        steps = np.round(image * 255.0).astype(np.int32).tobytes()
        if seen.setdefault(seed.tobytes(), steps) != steps:
            raise WrongAnswer(
                f"{server} drew the same noise for different images: "
                f"seed={seed.tolist()}",
                server=server,
            )


def _agreed(server: str, outputs: Outputs, own: Outputs) -> Outputs:
    """Refuses verdicts that do not follow from the counts beside them."""
    for name, computed in own.items():
        told = outputs[name]
        # NaN is close to nothing.
        votes = int(outputs["counts"].sum(-1).max())
        rtol = _RTOL + _RTOL_OF_A_VOTE * votes
        close = np.isclose(told, computed, rtol=rtol, atol=_ATOL)
        if not close.all():
            row = int(np.argmin(close))
            raise WrongAnswer(
                f"{server} answers with {name}={told[row]} where its own "
                f"counts give {computed[row]}",
                server=server,
            )
    return {**outputs, **own}
