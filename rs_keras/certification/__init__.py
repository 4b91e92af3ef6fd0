"""Monte Carlo certification of smoothed classifiers."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.certification.certificate import Certificate as Certificate
    from rs_keras.certification.certificate import Prediction as Prediction
    from rs_keras.certification.certifier import Certifier as Certifier
    from rs_keras.certification.sequential.decision import Decision as Decision

__all__, __getattr__, __dir__ = attach(__name__)
