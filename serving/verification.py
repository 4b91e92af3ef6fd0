"""Verification of receipts: draws are repeated and votes compared.

All selection draws are repeated; of the estimation draws all, or a random
sample of blocks. If a receipt claims k of n votes for a class, and m of these n
draws are sampled, the class has Hypergeometric(n, k, m) votes among them: the
answer is no if so few, or so many, have probability 1e-6 at most.

Processors round differently, so a few votes may differ: as many as an audit
allows, see `rs_keras.serving.client.audit.allowance`.
"""

import random
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy.stats import hypergeom

from rs_keras.certification.certificate import ABSTAIN
from rs_keras.certification.certificate import rounded_down
from rs_keras.certification.certifier import Certifier
from rs_keras.classifiers.fingerprint import fingerprint
from rs_keras.serving import receipts
from rs_keras.serving.client.audit import allowance
from rs_keras.serving.client.certification_client import CertificationClient
from rs_keras.serving.receipts import Receipt
from rs_keras.serving.receipts import Row

# Draws that are repeated by default.
DRAWS = 10_000
# Probability that a true receipt is answered with no, over all classes.
_ERROR = 1e-6
# Draws of a block. Blocks are chosen at random; draws of any block are
# independent under the seed.
_BLOCK = 100
# Not predictable, so that no receipt is made for what will be repeated.
_ENTROPY = random.SystemRandom()


class Verdict(NamedTuple):
    """The answer to a receipt.

    Attributes:
        holds: Whether it is true, as far as was checked.
        text: What was claimed and checked, in one sentence.
    """

    holds: bool
    text: str


def verify(
    receipt: Receipt,
    image: np.ndarray,
    source: receipts.Source,
    draws: int | None = DRAWS,
) -> Verdict:
    """Checks what a receipt claims of an image.

    Args:
        receipt: The receipt.
        image: float32 [H, W, C], as the model gets it.
        source: A `Certifier` or a `CertificationClient` of the model.
        draws: How many estimation draws to repeat; None for all.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras.export import export_certifier
    >>> from rs_keras.serving import CertificationClient, EmbeddedServer
    >>> from rs_keras.serving import receipts, verification
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
    >>> folder = tempfile.mkdtemp()
    >>> _ = export_certifier(certifier, folder, n=500, image_shape=(1, 1, 2))
    >>> image = np.array([[[1.0, 0.0]]], np.float32)
    >>> with EmbeddedServer(folder, model_name="half", port=0) as server:
    ...     with CertificationClient(server.address, "half") as client:
    ...         found = client.certify(image[None], receipt=True, seed=7)
    >>> _ = Path("half.json").write_text(found.receipt)
    >>> receipt = receipts.read("half.json")
    >>> verification.verify(receipt, image, certifier)
    Verdict(holds=True, text='yes: class 0, radius 0...')
    >>> verification.verify(receipt, image / 2, certifier).holds
    False
    """
    if other := _other_model(receipt, source):
        return Verdict(False, f"no: {other}")
    digest = receipts.image_hash(image)
    rows = [row for row in receipt.rows if row.image_sha256 == digest]
    if not rows:
        return Verdict(False, "no: the receipt is about another image")
    verdicts = [_verify_row(receipt, row, image, source, draws) for row in rows]
    return min(verdicts, key=lambda verdict: verdict.holds)


def _other_model(receipt: Receipt, source: receipts.Source) -> str:
    """Says in what a model differs from the export; empty if in nothing."""
    model = receipt.model
    if isinstance(source, CertificationClient):
        differing = model.differences(source.model)
        return f"another export is served, {differing}" if differing else ""
    if not isinstance(source, Certifier):
        return ""
    facts = {
        "sigma": source.sigma,
        "noise": source.noise,
        "dtype": source.dtype,
        "fingerprint": fingerprint(source.computing),
    }
    for name, own in facts.items():
        if (claimed := model.metadata[name]) != own:
            return (
                f"the receipt is about another model, {name}: {claimed!r} "
                f"and {own!r}"
            )
    return ""


def _verify_row(
    receipt: Receipt,
    row: Row,
    image: np.ndarray,
    source: receipts.Source,
    draws: int | None,
) -> Verdict:
    if wrong := receipts.contradiction(receipt, row):
        return Verdict(False, f"no: {wrong}")
    n0, dtype = receipt.spec.n0, receipt.model.metadata["dtype"]

    def repeat(first: int, n: int) -> np.ndarray:
        images, seeds = image[None], row.seed[None]
        return source.sample(images, n=n, seed=seeds, first=first)[0]

    selection = repeat(0, n0)
    if _apart(selection, row.selection_counts) > allowance(n0, dtype):
        return Verdict(
            False, f"no: the selection draws vote {_listed(selection)}"
        )
    if draws is None or draws >= row.n:
        counts = repeat(n0, row.n)
        agree = _apart(counts, row.counts) <= allowance(row.n, dtype)
        what = f"all {row.n} draws"
    else:
        blocks = list(_blocks(row.n, draws))
        counts = np.sum([repeat(n0 + first, n) for first, n in blocks], 0)
        sampled = sum(n for _, n in blocks)
        agree = _may_be_sample(counts, row, sampled, allowance(sampled, dtype))
        what = f"{sampled} of {row.n} draws"
    if not agree:
        return Verdict(
            False,
            f"no: {what} vote {_listed(counts)}, the receipt claims "
            f"{_listed(row.counts)} of {row.n}",
        )
    return Verdict(True, f"yes: {_claim(row)}; {what} repeated")


def _blocks(n: int, draws: int) -> Iterator[tuple[int, int]]:
    """Yields (first, size) of random blocks, of so many draws in all."""
    number = -(-n // _BLOCK)
    chosen = _ENTROPY.sample(range(number), min(number, -(-draws // _BLOCK)))
    for block in sorted(chosen):
        first = block * _BLOCK
        yield first, min(_BLOCK, n - first)


def _may_be_sample(
    counts: np.ndarray, row: Row, sampled: int, ties: int
) -> bool:
    """Whether counts may be those of a sample of the draws of a row."""
    least = _ERROR / (2 * len(counts))
    low = hypergeom.cdf(counts + ties, row.n, row.counts, sampled)
    high = hypergeom.sf(counts - ties - 1, row.n, row.counts, sampled)
    return bool((low > least).all() and (high > least).all())


def _apart(one: np.ndarray, other: np.ndarray) -> int:
    """Minimum number of draws whose votes differ."""
    change = np.asarray(one) - other
    return int(max(change.clip(0).sum(), (-change).clip(0).sum()))


def _listed(counts: Any) -> str:
    return np.array2string(np.asarray(counts), threshold=20).replace("\n", "")


def _claim(row: Row) -> str:
    if row.label == ABSTAIN:
        return "abstains"
    return f"class {row.label}, radius {rounded_down(row.radius)}"
