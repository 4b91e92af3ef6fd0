"""A page on this machine: draw an image, certify it, try to break it."""

from rs_keras.serving.demo.server import DemoServer

__all__ = ["DemoServer"]
