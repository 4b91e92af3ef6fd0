"""Robust accuracy and the gap, counted by hand."""

import numpy as np
import pytest

from rs_keras import CertificationLog
from rs_keras.logs import robust_accuracy
from rs_keras.logs import robustness_gap
from rs_keras.logs.robustness import pairs

INF = np.inf


def certified(rows=None, name="certified", **settings):
    """Rows (idx, label, predict, radius)."""
    rows = rows or [(0, 1, 1, 0.4), (1, 2, 2, 0.9), (2, 1, -1, 0), (3, 1, 0, 1)]
    idx, label, predict, radius = np.array(rows, float).T
    return CertificationLog(
        idx,
        label,
        predict,
        radius,
        label == predict,
        np.ones(len(idx)),
        name,
        settings,
    )


def attacked(rows=None, name="pgd", **settings):
    """Rows (idx, label, predict, adversarial_norm, abstain_norm)."""
    rows = rows or [
        (0, 1, 1, 0.6, 0.5),
        (1, 2, 2, INF, 0.95),
        (2, 1, -1, 0.3, 0.0),
        (3, 1, 0, 0.0, 0.0),
    ]
    idx, label, predict, norm, abstain = np.array(rows, float).T
    radius = np.where(predict >= 0, np.minimum(norm, 1.0), 0.0)
    return CertificationLog(
        idx,
        label,
        predict,
        radius,
        label == predict,
        np.ones(len(idx)),
        name,
        {"scope": "attack", "attack_radii": [0.5, 1.0], **settings},
        {"adversarial_norm": norm, "abstain_norm": abstain},
    )


def test_robust_accuracy_by_hand():
    # Norms .6, inf, .3 and 0 (wrong): at .3 all three that are not wrong.
    radii = [0.0, 0.3, 0.4, 0.6, 0.7, 5.0]
    found = robust_accuracy(attacked(), radii)
    np.testing.assert_array_equal(found, [0.75, 0.75, 0.5, 0.5, 0.25, 0.25])
    # With abstentions .5, .95, 0 and 0.
    found = robust_accuracy(attacked(), radii, abstentions="error")
    np.testing.assert_array_equal(found, [0.5, 0.5, 0.5, 0.25, 0.25, 0.0])


def test_the_gap_by_hand():
    gap = robustness_gap(certified(), attacked(), [0.0, 0.4, 0.7, 1.0])
    np.testing.assert_array_equal(gap.certified, [0.5, 0.5, 0.25, 0])
    np.testing.assert_array_equal(gap.empirical, [0.75, 0.5, 0.25, 0.25])
    np.testing.assert_array_equal(gap.gap, [0.25, 0, 0, 0.25])
    np.testing.assert_array_equal(gap.with_abstentions, [0.5, 0.5, 0.25, 0])
    assert gap.examples == 4 and gap.broken.tolist() == []


def test_a_contradicted_certificate_is_named():
    rows = [(0, 1, 1, 0.61), (1, 2, 2, 0.9), (2, 1, -1, 0), (3, 1, 1, 0.1)]
    gap = robustness_gap(certified(rows), attacked(), [0.5])
    # .6 < .61; example 3 is predicted wrong without any perturbation.
    assert gap.broken.tolist() == [0, 3]


def test_the_examples_of_the_attack_count():
    rows = [(idx, 1, 1, 0.1 * idx) for idx in range(9, -1, -1)]
    few = [(6, 1, 1, 0.7, 0.7), (2, 1, 1, INF, INF)]
    gap = robustness_gap(certified(rows), attacked(few), [0.3])
    assert gap.examples == 2 and gap.certified.tolist() == [0.5]


@pytest.mark.parametrize(
    "rows, settings, message",
    [
        ([(7, 1, 1, 0.5)], {}, "must hold the attack's examples"),
        ([(0, 2, 2, 0.5)], {}, "the same labels"),
        ([(0, 1, 1, 0.5)], {"sigma": 0.25}, "of the same sigma"),
        ([(0, 1, 1, 0.5)], {"model": "b"}, "of the same weights"),
        ([(0, 1, 1, 0.5)], {"dataset": "b"}, "of the same data set"),
    ],
)
def test_other_logs_are_not_compared(rows, settings, message):
    one = attacked([(0, 1, 1, 0.5, 0.5)], sigma=0.5, model="a", dataset="a")
    with pytest.raises(ValueError, match=message):
        robustness_gap(certified(rows, **settings), one, [0.5])


def test_other_images_are_not_compared():
    logs = [certified([(0, 1, 1, 0.5)]), attacked([(0, 1, 1, 0.6, 0.6)])]
    for log, digest in zip(logs, ("a3", "b4"), strict=True):
        log.extra["example"] = np.array([digest])
    with pytest.raises(ValueError, match="example 0 differs between"):
        robustness_gap(*logs, [0.5])


def test_pairs_are_those_that_belong_together():
    logs = [
        certified(name="a", sigma=0.5),
        certified(name="b", sigma=1.0),
        attacked(name="pgd", sigma=1.0),
        attacked(name="random"),
    ]
    found = [(one.name, other.name) for one, other in pairs(logs)]
    assert found == [("b", "pgd"), ("a", "random"), ("b", "random")]
    with pytest.raises(ValueError, match="of the same sigma"):
        pairs([logs[0], logs[2]])
    assert pairs(logs[2:]) == []


def test_a_certification_log_has_no_robust_accuracy():
    with pytest.raises(ValueError, match="`log` must be of an attack"):
        robust_accuracy(certified(), [0.5])
    with pytest.raises(ValueError, match="`radii` must be >= 0"):
        robust_accuracy(attacked(), [-0.5])
    with pytest.raises(ValueError, match="`abstentions` must be one of"):
        robust_accuracy(attacked(), [0.5], "no")
