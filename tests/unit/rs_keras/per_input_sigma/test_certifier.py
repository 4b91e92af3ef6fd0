import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from rs_keras import CertificationLog
from rs_keras import Certifier
from rs_keras import DataDependentCertifier
from rs_keras import certify_dataset
from rs_keras import optimize_sigma
from rs_keras.cli import main
from rs_keras.logs import capped_acr
from rs_keras.noise import as_seeds
from rs_keras.report.plots import plot_certified_accuracy
from rs_keras.report.tables import certified_table

N = {"n0": 20, "n": 400}


def soft(linear):
    return lambda x: 5.0 * linear(x)


def test_each_image_is_certified_at_its_sigma(linear, images):
    # A graph is traced for each.
    sigmas, images = np.array([0.1, 0.3, 0.5]), images[:3]
    seeds = as_seeds(3, len(images))
    for noise in ("float", "grid"):
        own = DataDependentCertifier(linear, 0.25, noise=noise)
        found = own.certify(images, sigma=sigmas, seed=seeds, **N)
        for row, sigma in enumerate(sigmas):
            fixed = Certifier(linear, sigma=float(sigma), noise=noise)
            one = fixed.certify(images[row][None], seed=seeds[row][None], **N)
            np.testing.assert_array_equal(found.counts[row], one.counts[0])
            assert found.radius[row] == one.radius[0]
        np.testing.assert_array_equal(found.sigma, sigmas)


def mean_level(x):
    """Two logits: is the mean pixel above .5? |w| is 1 / sqrt(pixels)."""
    score = tf.reduce_mean(x, [1, 2, 3]) - 0.5
    return tf.stack([-score, score], -1)


def test_sigma_moves_for_every_image_shape():
    """A stale sigma would draw with one noise and count with another."""
    own = DataDependentCertifier(mean_level, 0.25)
    large = np.full([1, 4, 4, 1], 0.6, np.float32)
    small = np.full([1, 2, 2, 1], 0.6, np.float32)
    for sigma in (0.5, 5.0, 0.05):
        for image, truth in [(large, 0.4), (small, 0.2)]:
            found = own.certify(image, sigma=sigma, seed=1, n=2_000)
            assert found.radius[0] <= truth
            fixed = Certifier(mean_level, sigma).certify(
                image, seed=found.seed, n=2_000
            )
            np.testing.assert_array_equal(found.counts, fixed.counts)
            assert found.radius[0] == fixed.radius[0]


def test_threads_do_not_move_each_others_sigma():
    own = DataDependentCertifier(mean_level, 0.25)
    image = np.full([1, 4, 4, 1], 0.6, np.float32)
    sigmas = [0.1, 0.4, 1.6, 6.4] * 4
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda s: own.certify(image, s, 1, n=2_000), sigmas)
        )
    fixed = {
        sigma: Certifier(mean_level, sigma).certify(image, n=2_000, seed=1)
        for sigma in set(sigmas)
    }
    for one, sigma in zip(found, sigmas, strict=True):
        np.testing.assert_array_equal(one.counts, fixed[sigma].counts)


@pytest.mark.parametrize("name", ["max_radius", "tolerance"])
def test_radii_beyond_what_an_images_sigma_can_reach(name):
    own = DataDependentCertifier(mean_level, 0.25)
    image = np.full([2, 4, 4, 1], 0.9, np.float32)
    given = {"seed": 1, "n": 2_000, name: 0.3}
    found = own.certify(image, sigma=[0.01, 0.25], **given)
    # All votes agree: lower bound (0.9 * alpha) ** (1 / n).
    n = found.n[0]
    limit = 0.01 * scipy.stats.norm.ppf(0.0009 ** (1 / n))
    assert found.radius[0] == pytest.approx(limit, rel=1e-9)
    assert found.settings[name] == 0.3
    with pytest.raises(ValueError, match=f"`{name}` must"):
        own.certify(image, seed=1, n=2_000, **{name: 3.0})


def test_sigma_is_chosen_by_the_ascent(linear, images):
    model = soft(linear)
    own = DataDependentCertifier(model, 0.25, 15, 2, 0.01)
    found = own.certify(images, seed=4, **N)
    chosen = optimize_sigma(model, images, 0.25, 15, 2, 0.01, seed=4)
    np.testing.assert_allclose(found.sigma, chosen, rtol=1e-6)
    assert len(set(found.sigma)) == len(images)
    again = own.certify(images, seed=found.seed, **N)
    np.testing.assert_array_equal(again.counts, found.counts)


def test_the_label_is_honest(linear, images):
    own = DataDependentCertifier(linear, 0.25, steps=0)
    found = own.certify(images, seed=1, **N)
    assert found.settings["scope"] == "per_input_sigma"
    assert "nothing is certified" in found.statement()
    fixed = Certifier(linear, 0.25).certify(images, seed=1, **N)
    assert fixed.sigma is None
    assert "nothing is certified" not in fixed.statement()


@pytest.fixture
def logs(linear, images, tmp_path):
    data = list(zip(images, linear.label(images), strict=True))
    own = DataDependentCertifier(soft(linear), 0.25, steps=5, learning_rate=0.1)
    certifiers = {"own": own, "fixed": Certifier(linear, 0.25)}
    return {
        name: certify_dataset(
            certifier,
            data,
            tmp_path / f"{name}.tsv",
            seed=1,
            progress=False,
            **N,
        )
        for name, certifier in certifiers.items()
    }


def test_logs_carry_sigma_and_scope(logs):
    own = logs["own"]
    assert own.scope == "per_input_sigma"
    assert own.extra["sigma"].shape == (5,)
    assert len(set(own.extra["sigma"])) > 1
    assert logs["fixed"].scope == "fixed_sigma"
    with pytest.raises(ValueError, match="`per_input_sigma` must be True"):
        own.acr()
    assert own.acr(per_input_sigma=True) > 0


def test_tables_leave_them_out_unless_asked(logs):
    both = [logs["fixed"], logs["own"]]
    assert "own" not in certified_table(both)
    marked = certified_table(both, per_input_sigma=True)
    assert "per-input sigma" in marked.splitlines()[2]
    with pytest.raises(ValueError, match="per_input_sigma"):
        certified_table([logs["own"]])


def test_envelopes_of_them_are_no_other(logs):
    mixed = CertificationLog.envelope(logs.values(), "mixed")
    fixed = CertificationLog.envelope([logs["fixed"]], "constant")
    assert (mixed.scope, fixed.scope) == ("per_input_sigma", "fixed_sigma")
    kept = certified_table([logs["fixed"], mixed, fixed])
    assert "constant" in kept and "mixed" not in kept
    marked = certified_table([logs["fixed"], mixed], per_input_sigma=True)
    assert marked.splitlines()[2].endswith("-  per-input sigma")


def test_plots_mark_them(logs):
    mixed = CertificationLog.envelope(logs.values(), "mixed")
    figure = plot_certified_accuracy([logs["fixed"], logs["own"], mixed])
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[0].startswith("fixed (ACR ")
    assert legend[1:] == ["own (per-input sigma)", "mixed (per-input sigma)"]


def test_no_average_of_them_unless_asked(logs):
    with pytest.raises(ValueError, match="`per_input_sigma` must be True"):
        capped_acr(logs["own"], 0.1)
    assert 0 < capped_acr(logs["own"], 0.1, per_input_sigma=True) <= 0.1


def test_the_authors_format_is_recognised(tmp_path):
    path = tmp_path / "log.tsv"
    path.write_text(
        "idx\tlabel\tpredict\tradius\tcorrect\ttime\tsigma\n"
        "0\t1\t1\t0.5\t1\t0:00:01\t0.25\n1\t1\t1\t0.4\t1\t0:00:01\t0.31\n"
    )
    assert CertificationLog.read(path).scope == "per_input_sigma"


def test_the_command_certifies_with_a_sigma_for_each_image(tmp_path, capsys):
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    model.save(tmp_path / "model.keras")
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "data.npz",
        images=rng.uniform(size=(4, 4, 4, 1)).astype(np.float32),
        labels=rng.integers(0, 2, 4),
    )
    out = tmp_path / "log.tsv"
    call = ["certify", f"npz:{tmp_path / 'data.npz'}"]
    call += ["--model", str(tmp_path / "model.keras"), "--sigma", "0.25"]
    call += ["--n", "200", "--seed", "1", "--out", str(out)]
    call += ["--sigma-mode", "data-dependent", "--sigma-steps", "3"]
    assert main(call) == 0
    assert "a sigma for each image" in capsys.readouterr().out
    settings = json.loads((tmp_path / "log.tsv.json").read_text())
    assert settings["scope"] == "per_input_sigma"
    assert settings["sigma_steps"] == 3
    assert main(["table", str(out)]) == 2
    assert "per_input_sigma" in capsys.readouterr().err
    assert main(["table", str(out), "--per-input-sigma"]) == 0
    kept = capsys.readouterr()
    assert "per-input sigma" in kept.out
    assert "left out" not in kept.err
    fixed = tmp_path / "fixed.tsv"
    call[call.index(str(out))] = str(fixed)
    assert main(call[: call.index("--sigma-mode")]) == 0
    capsys.readouterr()
    assert main(["table", str(fixed), str(out)]) == 0
    both = capsys.readouterr()
    assert "per-input sigma" not in both.out
    assert both.err.startswith("left out: log; ")


def test_no_retracing_between_sigmas(images):
    traces = []

    def model(x):
        traces.append(1)
        return tf.reshape(x, [-1, 16])[:, :3] - 0.5

    own = DataDependentCertifier(model, 0.25, steps=2)
    own.certify(images[:1], seed=1, **N)
    before = len(traces)
    own.certify(images, seed=2, **N)
    own.certify(images, sigma=0.7, seed=2, **N)
    assert len(traces) == before


@pytest.mark.parametrize(
    "sigma", [0.0, [0.1, 0.2], [0.1] * 4 + [np.nan]], ids=str
)
def test_bad_sigmas_of_images_are_refused(linear, images, sigma):
    with pytest.raises(ValueError, match="`sigma` must"):
        DataDependentCertifier(linear).certify(images, sigma=sigma, **N)
