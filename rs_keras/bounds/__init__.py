"""Confidence bounds and certified radii, in float64."""

from rs_keras.bounds.confidence import bernstein_lower
from rs_keras.bounds.confidence import binomial_pvalue
from rs_keras.bounds.confidence import clopper_pearson_lower
from rs_keras.bounds.confidence import clopper_pearson_upper
from rs_keras.bounds.confidence import hoeffding_lower
from rs_keras.bounds.joint import JointCount
from rs_keras.bounds.joint import joint_count
from rs_keras.bounds.joint import joint_weight
from rs_keras.bounds.other_norms import linf_log
from rs_keras.bounds.other_norms import linf_radius
from rs_keras.bounds.radii import TwoCount
from rs_keras.bounds.radii import certificate
from rs_keras.bounds.radii import lowered
from rs_keras.bounds.radii import max_radius
from rs_keras.bounds.radii import minimum_n
from rs_keras.bounds.radii import radius
from rs_keras.bounds.radii import raised
from rs_keras.bounds.radii import two_count

__all__ = [
    "JointCount",
    "TwoCount",
    "bernstein_lower",
    "binomial_pvalue",
    "certificate",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "hoeffding_lower",
    "joint_count",
    "joint_weight",
    "linf_log",
    "linf_radius",
    "lowered",
    "max_radius",
    "minimum_n",
    "radius",
    "raised",
    "two_count",
]
