"""A custom adversary: compared with PGD, then used in SmoothAdv training.

    python examples/own_adversary.py

An adversary is an object that is called with a function from images to noisy
logits [m, B, C], images and labels, and returns images. `factor` scales its
radius during the warm-up of training. This one ascends with momentum.
"""

import keras
import tensorflow as tf

from rs_keras import Certifier
from rs_keras import adversaries
from rs_keras import datasets
from rs_keras import models
from rs_keras import noise
from rs_keras.trainers import SGD
from rs_keras.trainers import SmoothAdv

SIGMA, EPSILON, COPIES = 0.25, 0.75, 4


@keras.saving.register_keras_serializable("examples")
class Momentum(adversaries.Adversary):
    """v = decay * v + g / |g|;  x = clip(project(x + size * v / |v|))."""

    def __init__(self, steps, epsilon, decay=0.75):
        self.steps, self.epsilon, self.decay = steps, epsilon, decay

    def __call__(self, classify, images, labels, factor=1.0):
        radius = self.epsilon * tf.cast(factor, images.dtype)
        size = 2.0 * radius / self.steps

        def loss_of(x):
            return adversaries.smoothed_loss(classify(x), labels)

        def step(_, x, velocity):
            # One ascent step, then projection into ball and pixel range.
            gradient = adversaries.gradient_of(loss_of, x)
            velocity = self.decay * velocity + adversaries.unit(gradient)
            x += size * adversaries.unit(velocity)
            x = images + adversaries.project(x - images, radius)
            return tf.clip_by_value(x, 0.0, 1.0), velocity

        start = images, tf.zeros_like(images)
        return tf.stop_gradient(adversaries.repeat(step, start, self.steps)[0])


def train(adversary):
    """Trains with SmoothAdv, which accepts any adversary."""
    keras.utils.set_random_seed(0)
    trainer = SmoothAdv(
        models.lenet(), SIGMA, num_noise=1, adversary=adversary, warmup_epochs=0
    )
    trainer.compile(optimizer=SGD(0.01, momentum=0.9))
    data = datasets.load("fashion_mini", "train", batch_size=64)
    trainer.fit(data, epochs=2, shuffle=False, verbose=0)
    return trainer.model


def accuracy(model, images, labels, adversary=None):
    """Accuracy of the smoothed classifier, after an attack if given."""
    if adversary is not None:
        eps = SIGMA * noise.normal(images.shape, [3, 0], 0, COPIES)

        def classify(x):
            copies = tf.reshape(x + eps, [-1, *images.shape[1:]])
            return tf.reshape(model(copies), [COPIES, len(images), -1])

        images = adversary(classify, tf.constant(images), labels).numpy()
    votes = Certifier(model, SIGMA).sample(images, n=100, seed=1)
    return (votes.argmax(1) == labels).mean()


def main():
    images, labels = datasets.arrays("fashion_mini", "test")
    images, labels = images[:100], labels[:100]
    pgd, own = adversaries.PGD(4, EPSILON), Momentum(4, EPSILON)
    trained = {
        "no adversary": train(adversaries.PGD(0, EPSILON)),
        "Momentum": train(Momentum(2, EPSILON)),
    }
    print(f"accuracy within {EPSILON}, of {len(images)} test images")
    print(f"{'trained against':<16} {'clean':>9} {'PGD':>9} {'Momentum':>9}")
    for name, model in trained.items():
        shares = [
            accuracy(model, images, labels, attack)
            for attack in (None, pgd, own)
        ]
        print(f"{name:<16} " + " ".join(f"{share:>9.2f}" for share in shares))


if __name__ == "__main__":
    main()
