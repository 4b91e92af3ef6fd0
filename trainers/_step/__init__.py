"""The parts of one training step: noise, checks, gradients."""
