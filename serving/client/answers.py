"""Checks the servers' counts, and computes certificates from them.

Labels, bounds and radii are computed here, by the rule of the library. Those
in the response only serve to detect a broken server. Counts that this number of
draws cannot give are refused.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rs_keras.certification.certificate import Certificate
from rs_keras.certification.certificate import Prediction
from rs_keras.certification.spec import CertifySpec
from rs_keras.certification.votes_to_results import decide_label
from rs_keras.certification.votes_to_results import vote_certificate
from rs_keras.serving.client.served_model import ServedModel
from rs_keras.serving.errors import WrongAnswer

Outputs = dict[str, np.ndarray]

# Rounding differences of the float64 formula between two machines: a constant,
# and a part for tails whose logarithm has terms as large as the votes.
_RTOL = 1e-9
_RTOL_OF_A_VOTE = 2.0**-48
_ATOL = 1e-12


def certificate(
    model: ServedModel, spec: CertifySpec, **votes: Any
) -> Certificate:
    """Computes the certificate from votes.

    Args:
        model: The model that voted.
        spec: The arguments of the certificate.
        **votes: The fields `selection_counts`, `counts`, `n` and `seed`.
    """
    label, radius, p_lower = vote_certificate(
        votes["selection_counts"],
        votes["counts"],
        spec,
        model.smoothing,
        votes["n"],
    )
    return Certificate(
        label=label.numpy(),
        radius=radius.numpy(),
        p_lower=p_lower.numpy(),
        settings=model.with_model_name(spec.settings(model.smoothing)),
        **votes,
    )


def prediction(
    model: ServedModel, n: int, alpha: float, **votes: np.ndarray
) -> Prediction:
    """Computes the prediction from the votes of n draws."""
    label, p_value = decide_label(
        votes["counts"], alpha, n, model.smoothing.distance
    )
    return Prediction(label.numpy(), p_value.numpy(), **votes)


def sampled(asked: Sequence[int], server: str, outputs: Outputs) -> np.ndarray:
    """Returns the votes [B, C] of a response to `sample`, checked.

    Args:
        asked: The requested number of draws of each row.
        server: The sender.
        outputs: The outputs of the response.

    Raises:
        WrongAnswer: If they are about another number of draws, a count is
            negative, or a row has more votes than draws. It may have fewer: a
            draw whose logits are not finite votes for no class.
    """
    drawn = outputs["n"]
    if (drawn == 0).any():
        row = drawn.tolist().index(0)
        raise WrongAnswer(
            f"{server} rejects image {row} of a request that this client has "
            "checked: client and export disagree about which images are valid",
            server=server,
        )
    for n, wanted in zip(drawn.tolist(), asked, strict=True):
        if n != wanted:
            raise WrongAnswer(
                f"{server} was asked for {wanted} draws and answers with n={n}",
                server=server,
            )
    _check_votes(server, outputs, asked, "counts")
    return outputs["counts"]


def certified(
    model: ServedModel,
    spec: CertifySpec,
    images: np.ndarray,
    server: str,
    outputs: Outputs,
) -> Certificate:
    """Checks a response to `certify`; returns the certificate."""
    sampled([spec.n] * len(images), server, outputs)
    n0 = [spec.n0] * len(images)
    _check_votes(server, outputs, n0, "selection_counts")
    _check_seeds(server, outputs, images)
    names = ("selection_counts", "counts", "n", "seed")
    own = certificate(model, spec, **{name: outputs[name] for name in names})
    _check_agreed(server, outputs, own, ("label", "radius", "p_lower"))
    return own


def predicted(
    model: ServedModel, images: np.ndarray, server: str, outputs: Outputs
) -> Prediction:
    """Checks a response to `predict`; returns the prediction."""
    n, alpha = model.metadata["predict_n"], model.metadata["alpha"]
    counts = sampled([n] * len(images), server, outputs)
    _check_seeds(server, outputs, images)
    own = prediction(model, n, alpha, counts=counts, seed=outputs["seed"])
    _check_agreed(server, outputs, own, ("label", "p_value"))
    return own


def _check_votes(
    server: str, outputs: Outputs, asked: Sequence[int], name: str
) -> None:
    """Raises for votes that `asked` draws per row cannot give."""
    # Python's integers: a sum of int64 may wrap.
    rows = outputs[name].tolist()
    for votes, wanted in zip(rows, asked, strict=True):
        if min(votes) < 0 or sum(votes) > wanted:
            raise WrongAnswer(
                f"{server} was asked for {wanted} draws and answers with "
                f"{name}={votes}: no such answer can be counted",
                server=server,
            )


def _check_seeds(server: str, outputs: Outputs, images: np.ndarray) -> None:
    """Raises if two images that differ by at least 1/255 share a seed."""
    seen: dict[bytes, bytes] = {}
    for image, seed in zip(images, outputs["seed"], strict=True):
        steps = np.round(image * 255.0).astype(np.int32).tobytes()
        if seen.setdefault(seed.tobytes(), steps) != steps:
            raise WrongAnswer(
                f"{server} drew the same noise for different images: "
                f"seed={seed.tolist()}",
                server=server,
            )


def _check_agreed(
    server: str, outputs: Outputs, own: Any, names: Sequence[str]
) -> None:
    """Raises for results that do not follow from the counts."""
    votes = int(outputs["counts"].sum(-1).max())
    rtol = _RTOL + _RTOL_OF_A_VOTE * votes
    for name in names:
        claimed, computed = outputs[name], getattr(own, name)
        # Not a number only where this client computes none either: there is
        # no `p_lower` with the joint bound.
        close = np.isclose(
            claimed, computed, rtol=rtol, atol=_ATOL, equal_nan=True
        )
        if not close.all():
            row = int(np.argmin(close))
            raise WrongAnswer(
                f"{server} answers with {name}={claimed[row]} where its own "
                f"counts give {computed[row]}",
                server=server,
            )
