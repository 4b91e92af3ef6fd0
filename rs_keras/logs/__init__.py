"""Certification logs: reading, writing, merging, metrics, comparison."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.logs.comparison import Comparison as Comparison
    from rs_keras.logs.comparison import compare_acr as compare_acr
    from rs_keras.logs.corruptions import CorruptionResult as CorruptionResult
    from rs_keras.logs.corruptions import CorruptionSummary as CorruptionSummary
    from rs_keras.logs.corruptions import corruption_table as corruption_table
    from rs_keras.logs.corruptions import grouped as grouped
    from rs_keras.logs.corruptions import summarize as summarize
    from rs_keras.logs.evaluation import certify_dataset as certify_dataset
    from rs_keras.logs.evaluation import decide_dataset as decide_dataset
    from rs_keras.logs.file_format import read_settings as read_settings
    from rs_keras.logs.log import CertificationLog as CertificationLog
    from rs_keras.logs.log import Envelope as Envelope
    from rs_keras.logs.metrics import accuracy_interval as accuracy_interval
    from rs_keras.logs.metrics import capped_acr as capped_acr
    from rs_keras.logs.metrics import class_accuracy as class_accuracy
    from rs_keras.logs.metrics import mean_samples as mean_samples
    from rs_keras.logs.metrics import median_radius as median_radius
    from rs_keras.logs.metrics import top_probabilities as top_probabilities
    from rs_keras.logs.metrics import (
        top_probability_ecdf as top_probability_ecdf,
    )
    from rs_keras.logs.robustness import RobustnessGap as RobustnessGap
    from rs_keras.logs.robustness import is_attack as is_attack
    from rs_keras.logs.robustness import robust_accuracy as robust_accuracy
    from rs_keras.logs.robustness import robustness_gap as robustness_gap
    from rs_keras.logs.selection import selected as selected
    from rs_keras.logs.writer import LogWriter as LogWriter

__all__, __getattr__, __dir__ = attach(__name__)
