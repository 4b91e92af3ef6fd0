"""TF Serving's REST API, and its metrics for Prometheus."""
