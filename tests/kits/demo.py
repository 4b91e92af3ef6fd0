"""A small model for the demonstration page, and questions to its server."""

import base64
import http.client
import json
from urllib.parse import urlsplit

import keras
import numpy as np

from rs_keras import Certifier
from rs_keras.serving.demo import DemoServer

SIGMA = 0.5
SHAPE = (28, 28, 1)


def linear_model(seed=0):
    """A linear classifier, all of whose true radii are known.

    What is bright, as a drawing is, it calls 7.
    """
    weights = np.random.default_rng(seed).normal(size=[784, 10])
    weights[:, 7] += 0.5
    model = keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Flatten(),
            keras.layers.Dense(10, use_bias=False),
        ]
    )
    model.set_weights([weights.astype("float32")])
    return model


def demo_server():
    certifier = Certifier(linear_model(), sigma=SIGMA)
    return DemoServer(certifier, title="a small model"), certifier


def an_image(seed=0):
    return np.random.default_rng(seed).uniform(size=SHAPE).astype("float32")


def to_text(image):
    return base64.b64encode(np.asarray(image, "<f4").tobytes()).decode()


def from_text(text):
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(SHAPE)


class Asker:
    """Speaks HTTP as the page does, or as it must not be spoken."""

    def __init__(self, address):
        self.host = urlsplit(address).netloc

    def request(self, method, path, body=None, **headers):
        """Returns a response; a header that is None is left out."""
        given = {"Host": self.host, **headers}
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.putrequest(
            method, path, skip_host=True, skip_accept_encoding=True
        )
        for name, value in given.items():
            if value is not None:
                connection.putheader(name.replace("_", "-"), value)
        connection.endheaders(body)
        return connection.getresponse()

    def get(self, path, **headers):
        return self.request("GET", path, **headers)

    def post(self, path, body, **headers):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        usual = {
            "Origin": f"http://{self.host}",
            "Content_Type": "application/json",
            "Content_Length": str(len(raw)),
        }
        return self.request("POST", path, raw, **{**usual, **headers})

    def lines(self, path, **body):
        """Asks as the page does; returns the lines of the answer."""
        with self.post(path, body) as response:
            assert response.status == 200, response.read()
            return [json.loads(line) for line in response]


def reason(response):
    """The words of a refusal."""
    with response:
        return response.status, json.loads(response.read())["error"]
