"""Training on several replicas and workers."""
