"""The draws of `decide` against the least that any sequential test can take.

    python benchmarks/information_limit.py [--radii 1 2 3] [--two-counts]

A test that certifies an image of vote share p0 = cdf(r / sigma) with
probability alpha at most takes, on an image of share p,

    log(1 / alpha) / KL(p, p0)  draws where p > p0,
    log(1 / beta) / KL(p, p0)   draws where p < p0,

on average, or n_max where that is less (Wald, 1945; beta is the probability
of giving up an image at p0). The mean of this over the images of a log is what
`decide` with one count is held against: its own mean is computed exactly, by a
dynamic program over the tables that it uses. So is its certified accuracy,
beside that of one test of n_max draws.

The shares are those of logs that the authors of SmoothMix published, whole test
sets at n = 100,000: `vote_shares/*.json` hold how many images have each radius,
and the source. An abstention tells no share: these are spread over 0.25 to
0.505, where they take a few draws each.

With --two-counts the same for both counts, on the votes of this repository's
MNIST logs (results/mnist/sigma_1.00): the limit is that of the nearest
probabilities of radius r, the draws are those of `decide` on votes that fall as
in the log, --repeats times for each image.
"""

import argparse
import csv
import json
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
import scipy.special  # noqa: E402
import scipy.stats  # noqa: E402
from timing import table  # noqa: E402

from rs_keras.certification.sequential import boundaries  # noqa: E402

ALPHA = 1e-3
N_MAX = 100_000
# The probability of giving up that the boundaries of `decide` allow.
BETA = 0.05

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "mnist" / "sigma_1.00"


def shares_of(radii, sigma, n, alpha):
    """The vote shares whose Clopper-Pearson bound gives these radii."""
    lower = scipy.stats.norm.cdf(np.asarray(radii) / sigma)
    # P[Binomial(n, lower) >= k] = alpha: k rises with the bound.
    low, high = np.zeros_like(lower), np.full_like(lower, n)
    for _ in range(60):
        k = (low + high) / 2
        below = scipy.stats.beta.ppf(alpha, k, n - k + 1) < lower
        low, high = np.where(below, k, low), np.where(below, high, k)
    return np.minimum(np.rint(high), n) / n


def read_shares(path):
    """Shares p, how many images have each, and how many of them are right."""
    log = json.loads(path.read_text())
    p = shares_of(log["radius"], log["sigma"], log["n"], log["alpha"])
    unknown = np.linspace(0.25, 0.505, log["abstained"])
    images = np.append(log["images"], np.ones_like(unknown))
    correct = np.append(log["correct"], np.zeros_like(unknown))
    total = images.sum()
    return np.append(p, unknown), images / total, correct / total


def divergence(p, q):
    """KL of Bernoulli(q) from Bernoulli(p)."""
    return scipy.special.rel_entr(p, q) + scipy.special.rel_entr(1 - p, 1 - q)


def limit(p, p0):
    """The least draws on average, for each share."""
    needed = np.log(1 / np.where(p > p0, ALPHA, BETA))
    return np.minimum(needed / np.maximum(divergence(p, p0), 1e-300), N_MAX)


def expected(p, tables):
    """Draws, certification and stages of one image of share p, exactly."""
    walk = boundaries.Walk(p, 1 - p, cut=1e-13)
    n = certified = draws = stages = 0.0
    for stage, upper, lower in zip(
        tables.stages.tolist(),
        tables.upper[:, 0].tolist(),
        tables.lower[:, 0].tolist(),
        strict=True,
    ):
        going = walk.mass.sum()
        draws += going * (stage - n)
        stages += going
        walk.advance(stage)
        certified += walk.stop_at(upper)
        # Counts up to the lower boundary are given up.
        kept = np.clip(lower + 1 - walk.low, 0, len(walk.mass))
        walk.mass, walk.low = walk.mass[kept:], walk.low + int(kept)
        n = stage
        if walk.mass.sum() < 1e-12:
            break
    return draws, certified, stages


def one_count(path, scaled):
    """A row of the table: `decide` with one count at `scaled` * sigma."""
    p, weight, correct = read_shares(path)
    p = np.minimum(p, 1 - 1e-9)
    p0 = scipy.stats.norm.cdf(scaled)
    tables = boundaries.one_count((scaled,), 1.0, ALPHA, N_MAX, 100)
    draws, certified, stages = np.array([expected(x, tables) for x in p]).T
    # One test of all draws.
    k = np.arange(1, N_MAX + 1)
    lower = scipy.stats.beta.ppf(ALPHA, k, N_MAX - k + 1)
    fixed = scipy.stats.binom.sf(np.argmax(lower >= p0), N_MAX, p)
    least, mean = weight @ limit(p, p0), weight @ draws
    return [
        path.stem,
        f"{scaled:g} sigma",
        f"{least:,.0f}",
        f"{mean:,.0f}",
        f"{mean / least:.3f}",
        f"1/{N_MAX / mean:.1f}",
        f"{correct @ certified:.2%}",
        f"{correct @ (certified - fixed):+.3%}",
        f"{weight @ stages:.2f}",
    ]


def votes_of(log, n=100_000, sigma=1.0):
    """Shares of ten classes of each image, from the log with either bound."""
    plain, both = (
        list(csv.DictReader(open(log / name, newline=""), delimiter="\t"))
        for name in ("plain.tsv", "runner_up.tsv")
    )
    found, right, radii = [], [], []
    for one, two in zip(plain, both, strict=True):
        if "-1" in (one["predict"], two["predict"]):
            continue
        k = shares_of([float(one["radius"])], sigma, n, ALPHA)[0] * n
        lower = scipy.stats.beta.ppf(0.9 * ALPHA, k, n - k + 1)
        z = scipy.stats.norm.ppf(lower) - 2 * float(two["radius"]) / sigma
        upper = scipy.stats.norm.cdf(z)
        # The votes whose upper bound this is; all others where it is 1 - lower.
        k2 = n - k
        if upper < 1 - lower - 1e-9:
            low, high = 0.0, n - k
            for _ in range(40):
                k2 = (low + high) / 2
                bound = scipy.stats.beta.ppf(1 - 0.1 * ALPHA, k2 + 1, n - k2)
                low, high = (k2, high) if bound < upper else (low, k2)
        shares = np.array([k, k2, *[0] * 8]) / n
        left = 1 - shares.sum()
        for c in range(2, 10):
            # The log does not tell how the rest is spread.
            shares[c] = min(left / 2 if c < 9 else left, shares[1])
            left -= shares[c]
        shares[0] += left
        found.append(shares)
        right.append(two["label"] == two["predict"])
        radii.append([float(one["radius"]), float(two["radius"])])
    return np.array(found), np.array(right), np.array(radii)


def limit_of_two(shares, scaled):
    """As `limit`, by the nearest probabilities of that radius."""
    p_a, p_b = shares[:, :1], shares[:, 1:2]
    p_c = 1 - p_a - p_b
    t = -np.linspace(0, 3, 4_000)[1:]
    q_a, q_b = scipy.stats.norm.cdf([t + scaled, t - scaled])
    nearest = sum(
        scipy.special.rel_entr(p, q)
        for p, q in ((p_a, q_a), (p_b, q_b), (p_c, 1 - q_a - q_b))
    ).min(-1)
    gap = scipy.stats.norm.ppf(p_a) - scipy.stats.norm.ppf(p_b)
    needed = np.log(1 / np.where(gap[:, 0] > 2 * scaled, ALPHA, BETA))
    return np.minimum(needed / nearest, N_MAX)


def two_counts(log, scaled, repeats, runner_up):
    """A row of the table: `decide` on votes that fall as in a log."""
    from rs_keras.certification.sequential import decision

    shares, right, radii = votes_of(log)
    rng = np.random.default_rng(0)
    rows = np.repeat(shares, repeats, 0)
    if runner_up:
        tables = boundaries.two_counts((scaled,), ALPHA, N_MAX, 100)
        least = limit_of_two(shares, scaled)
    else:
        tables = boundaries.one_count((scaled,), 1.0, ALPHA, N_MAX, 100)
        least = limit(shares[:, 0], scipy.stats.norm.cdf(scaled))
    found = decision.decide_on_host(
        lambda some, first, n: rng.multinomial(n, rows[some]),
        len(rows),
        tables,
        1.0,
    )
    n = found["n"].reshape(-1, repeats)
    certified = (found["label"] == 0).reshape(-1, repeats).mean(1)
    error = np.sqrt((n.var(1) / repeats).sum()) / len(n)
    least, mean = least.mean(), n.mean()
    fixed = right & (radii[:, int(runner_up)] >= scaled)
    return [
        f"{log.name}, {'two counts' if runner_up else 'one'}",
        f"{scaled:g} sigma",
        f"{least:,.0f}",
        f"{mean:,.0f} +- {error:.0f}",
        f"{mean / least:.3f}",
        f"1/{N_MAX / mean:.1f}",
        f"{(right * certified).mean():.2%}",
        f"{(right * certified).mean() - fixed.mean():+.3%}",
        "",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--radii", type=float, nargs="+", default=[1.0])
    parser.add_argument("--two-counts", action="store_true")
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    rows = []
    for scaled in args.radii:
        if args.two_counts:
            for name in ("gaussian", "smoothmix_T1", "catrs"):
                for runner_up in (False, True):
                    rows.append(
                        two_counts(
                            RESULTS / name, scaled, args.repeats, runner_up
                        )
                    )
        else:
            for path in sorted((HERE / "vote_shares").glob("*.json")):
                rows.append(one_count(path, scaled))
    header = ["log", "radius", "limit", "draws", "of it", f"of {N_MAX:,}"]
    header += ["certified", "against one test", "stages"]
    print(f"alpha {ALPHA}, beta {BETA}, n_max {N_MAX:,}")
    print(table(header, rows))


if __name__ == "__main__":
    main()
