"""What one test of both counts gains over two bounds, on committed logs.

Each log of `results/mnist` gives the votes of its images back: the radius of
`plain.tsv` those for the top class, that of `runner_up.tsv` those for the
runner-up. The mean radius of both bounds is compared at these votes, and at
simulated ones of fewer draws; with `--tolerance`, planned numbers of draws are
simulated: their share of all, and the ACR over that of the papers' bound.

    python benchmarks/joint_bound.py --images 100
    python benchmarks/joint_bound.py --images 200 --tolerance 0.02,0.05,0.1
"""

import argparse
import time
from pathlib import Path

import numpy as np
import scipy.special

from rs_keras import CertificationLog
from rs_keras import bounds
from rs_keras.certification import sample_size
from rs_keras.certification.spec import PILOT
from rs_keras.certification.spec import CertifySpec

RESULTS = Path(__file__).parents[1] / "results" / "mnist"
ALPHA = 1e-3


def votes(folder: Path) -> tuple[np.ndarray, ...]:
    """Returns k, k2 and whether each image is right; sigma, n and the ACR."""
    plain = CertificationLog.read(folder / "plain.tsv")
    both = CertificationLog.read(folder / "runner_up.tsv")
    n, sigma = plain.settings["n"], plain.settings["sigma"]
    known = (plain.predict >= 0) & (both.predict >= 0)
    # k with CP(k) = cdf(radius / sigma), from the inverse function.
    p = scipy.special.ndtr((plain.radius[known] + 5e-7) / sigma)
    k = np.array([_inverse(value, n) for value in p])
    low = np.asarray(bounds.clopper_pearson_lower(k, n, 0.9 * ALPHA))
    z = scipy.special.ndtri(low) - 2 * (both.radius[known] + 5e-7) / sigma
    upper = scipy.special.ndtr(z)
    # U(k2) = upper.
    k2 = np.array([n - _inverse(1 - u, n, 0.1 * ALPHA) for u in upper])
    k2 = np.clip(k2, 0, n - k)
    return k, k2, both.correct[known], sigma, n, plain.acr(), len(plain)


def _inverse(p: float, n: int, alpha: float = ALPHA) -> int:
    """Returns the k whose lower bound is p."""
    if p >= 1:
        return n
    low, high = 0, n
    while high - low > 1:
        k = (low + high) // 2
        # P[Binomial(n, p) >= k] <= alpha: the bound of k is p at least.
        if scipy.special.betainc(k, n - k + 1, p) <= alpha:
            high = k
        else:
            low = k
    return (
        high
        if abs(_tail(high, n, p, alpha)) < abs(_tail(low, n, p, alpha))
        else low
    )


def _tail(k: int, n: int, p: float, alpha: float) -> float:
    if k < 1:
        return np.inf
    return np.log(scipy.special.betainc(k, n - k + 1, p) / alpha)


def draws(
    rng: np.random.Generator, p_a: np.ndarray, p_b: np.ndarray, n: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Simulated votes for the top class and for the strongest other."""
    rest = np.maximum(1 - p_a - p_b, 0)
    # The other eight share the rest, none of them more than the runner-up.
    others = np.stack([p_a, p_b, *[rest / 8] * 8], -1)
    counts = rng.multinomial(n, others / others.sum(-1, keepdims=True))
    return counts[:, 0], counts[:, 1:].max(-1)


def radii(
    bound: str, k: np.ndarray, k2: np.ndarray, n: np.ndarray, sigma: float
) -> np.ndarray:
    return bounds.certificate(k, k2, n, ALPHA, sigma, bound=bound)[1].numpy()


def gains(folder: Path, images: int) -> None:
    k, k2, _, sigma, n, _, _ = votes(folder)
    rng = np.random.default_rng(0)
    rows = np.argsort(k)[np.linspace(0, len(k) - 1, images).astype(int)]
    k, k2 = k[rows], k2[rows]
    cells = []
    for size in (1_000, 10_000, n):
        a, b = (k, k2) if size == n else draws(rng, k / n, k2 / n, size)
        two = radii("clopper_pearson", a, b, size, sigma)
        radii("joint", a[:2], b[:2], size, sigma)
        begun = time.process_time()
        joint = radii("joint", a, b, size, sigma)
        seconds = time.process_time() - begun
        cells.append(
            f"n {size}: {joint.mean() / two.mean() - 1:+.2%}, least "
            f"{(joint - two).min() / sigma:+.5f} sigma, "
            f"{1e3 * seconds / images:.1f} ms"
        )
    print(f"{folder.relative_to(RESULTS)}: " + "; ".join(cells), flush=True)


def plans(folder: Path, images: int, tolerances: list[float]) -> None:
    k, k2, right, sigma, n, acr, total = votes(folder)
    rng = np.random.default_rng(1)
    rows = np.linspace(0, len(k) - 1, images).astype(int)
    p_a, p_b, right = k[rows] / n, k2[rows] / n, right[rows]
    one = bounds.certificate(k[rows], None, n, ALPHA, sigma)[1].numpy()
    papers = (one * right).mean()
    pilot = np.stack(draws(rng, p_a, p_b, PILOT), -1)
    cells = []
    for tolerance in tolerances:
        spec = CertifySpec(n=n, tolerance=tolerance * sigma)
        sizes = sample_size.sample_sizes(pilot, spec, sigma)
        a, b = draws(rng, p_a, p_b, sizes)
        share = (sizes.mean() + PILOT) / n
        parts = [
            f"{(radii(bound, a, b, sizes, sigma) * right).mean() / papers:.4f}"
            for bound in ("clopper_pearson", "joint")
        ]
        cells.append(f"{tolerance}: {share:.3f} {' '.join(parts)}")
    print(f"{folder.relative_to(RESULTS)}: " + "; ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--tolerance", help="in sigma: 0.02,0.05")
    args = parser.parse_args()
    for folder in sorted(path.parent for path in RESULTS.rglob("plain.tsv")):
        if "ablations" in folder.parts:
            continue
        if args.tolerance is None:
            gains(folder, args.images)
        else:
            plans(folder, args.images, [*map(float, args.tolerance.split(","))])


if __name__ == "__main__":
    main()
