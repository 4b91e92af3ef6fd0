"""Confidence bounds and certified radii, in float64."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.bounds.confidence import bernstein_lower as bernstein_lower
    from rs_keras.bounds.confidence import binomial_pvalue as binomial_pvalue
    from rs_keras.bounds.confidence import (
        clopper_pearson_lower as clopper_pearson_lower,
    )
    from rs_keras.bounds.confidence import (
        clopper_pearson_upper as clopper_pearson_upper,
    )
    from rs_keras.bounds.confidence import hoeffding_lower as hoeffding_lower
    from rs_keras.bounds.joint import JointCount as JointCount
    from rs_keras.bounds.joint import joint_count as joint_count
    from rs_keras.bounds.radii import TwoCount as TwoCount
    from rs_keras.bounds.radii import certificate as certificate
    from rs_keras.bounds.radii import linf_radius as linf_radius
    from rs_keras.bounds.radii import lowered as lowered
    from rs_keras.bounds.radii import max_radius as max_radius
    from rs_keras.bounds.radii import mean_certificate as mean_certificate
    from rs_keras.bounds.radii import minimum_n as minimum_n
    from rs_keras.bounds.radii import radius as radius
    from rs_keras.bounds.radii import raised as raised
    from rs_keras.bounds.radii import two_count as two_count
    from rs_keras.logs.metrics import linf_log as linf_log

__all__, __getattr__, __dir__ = attach(__name__)
