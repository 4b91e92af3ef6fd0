"""TF Serving's REST API, and its metrics for Prometheus."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.serving.server.rest.endpoint import Endpoint as Endpoint

__all__, __getattr__, __dir__ = attach(__name__)
