"""The certifier as graphs, one a signature.

Counting, bounds and verdicts are those of `rs_keras.Certifier`; here they only
get the inputs and outputs of `export/signature.py`, and guards. A fault of one
image must not fail the request, as a server may have put other images beside
it: such a row draws nothing (n = 0), abstains, and certifies nothing.
"""

import json
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from rs_keras import bounds
from rs_keras.certification.certificate import ABSTAIN
from rs_keras.certification.sampling import Sampler
from rs_keras.certification.sampling import noise_distance
from rs_keras.certification.sequential.decision import decide_in_graph
from rs_keras.certification.sequential.decision import decision_tables
from rs_keras.certification.spec import SmoothingSpec
from rs_keras.certification.voting import decide_label
from rs_keras.certification.voting import vote_certificate
from rs_keras.export import metadata
from rs_keras.export import signature
from rs_keras.export.settings import Settings
from rs_keras.export.weights import ConcreteFunction
from rs_keras.noise.draws import addressed_draws
from rs_keras.noise.keyed_seeds import SeedKey

Outputs = dict[str, tf.Tensor]


def signatures_of(settings: Settings) -> dict[str, signature.Signature]:
    """Returns the signatures that an export with these settings has."""
    extra = signature.BYTES_SIGNATURES if settings.image_bytes else {}
    return {**signature.SIGNATURES, **extra}


def smoothing_of(sampler: Sampler) -> SmoothingSpec:
    """Returns the noise of the sampler."""
    sigma, noise = sampler.sigma, sampler.noise
    distance = noise_distance(noise, sigma, sampler.image_shape)
    return SmoothingSpec(sigma, noise, distance=distance)


def counting(sampler: Sampler) -> ConcreteFunction:
    """Returns `sampler.count`, traced.

    One function for all signatures: the network is stored once.
    """
    rows = tf.TensorSpec([None], tf.int64)
    return tf.function(sampler.count).get_concrete_function(
        tf.TensorSpec([None, *sampler.image_shape], tf.float32),
        tf.TensorSpec([None, 2], tf.int64),
        rows,
        rows,
    )


def classifying(sampler: Sampler) -> ConcreteFunction:
    """Returns the classifier alone, traced."""
    images = tf.TensorSpec([None, *sampler.image_shape], tf.float32)
    return tf.function(sampler.logits).get_concrete_function(images)


class CertifierGraph:
    """Traces a certifier's signatures.

    Args:
        sampler: The certifier's, for this shape of images.
        count: `counting(sampler)`.
        settings: What is baked in.
        metadata_json: What `describe` answers.
        key: Makes the seeds. It lies in the graph, and in no answer.
    """

    def __init__(
        self,
        sampler: Sampler,
        count: ConcreteFunction,
        settings: Settings,
        metadata_json: str,
        key: SeedKey,
    ) -> None:
        self.sampler = sampler
        self.settings = settings
        self.metadata_json = metadata_json
        self._export = tf.constant(
            metadata.identity(json.loads(metadata_json)), tf.int64
        )
        self._count = count
        self._smoothing = smoothing_of(sampler)
        self._key = key
        self._tables = decision_tables(settings.decide_spec, self._smoothing)
        self._most_draws = addressed_draws(sampler.image_shape)

    def concrete_functions(self) -> dict[str, ConcreteFunction]:
        """Returns a traced function for each signature."""
        return {
            name: self._traced(name, wanted)
            for name, wanted in signatures_of(self.settings).items()
        }

    def _traced(
        self, name: str, wanted: signature.Signature
    ) -> ConcreteFunction:
        method = getattr(self, name)
        shapes = {
            key: field.row_shape(
                self.sampler.image_shape, self.sampler.num_classes
            )
            for key, field in wanted.inputs.items()
        }

        def served(**inputs: tf.Tensor) -> Outputs:
            # Servers do not look at shapes: without this check, operations
            # that happen to fit would answer about something else.
            inputs = {
                key: tf.ensure_shape(value, [None, *shapes[key]])
                for key, value in inputs.items()
            }
            with tf.control_dependencies(_same_rows(list(inputs.values()))):
                inputs = {k: tf.identity(v) for k, v in inputs.items()}
            rows = tf.shape(next(iter(inputs.values())))[:1]
            outputs = {
                "export": tf.fill(rows, self._export),
                **method(**inputs),
            }
            return {
                key: tf.identity(outputs[key], name=key)
                for key in wanted.outputs
            }

        specs = {
            key: tf.TensorSpec([None, *shapes[key]], field.dtype, name=key)
            for key, field in wanted.inputs.items()
        }
        return tf.function(served).get_concrete_function(**specs)

    # -- the signatures ------------------------------------------------------

    def predict(self, images: tf.Tensor) -> Outputs:
        """PREDICT with the baked numbers and a seed of the server's."""
        seed = self._new_seeds(images)
        n = self._draws(self._accepts(images), self.settings.predict_n)
        counts = self._count(images, seed, tf.zeros_like(n), n)
        alpha = tf.constant(self.settings.alpha, tf.float64)
        distance = self._smoothing.distance
        label, p_value = decide_label(counts, alpha, n, distance)
        return {
            "label": label,
            "counts": counts,
            "p_value": p_value,
            "n": n,
            "seed": seed,
        }

    def certify(self, images: tf.Tensor) -> Outputs:
        """CERTIFY with the baked numbers and a seed of the server's."""
        rows = tf.shape(images)[:1]
        return self.certify_with(
            images,
            self._new_seeds(images),
            tf.fill(rows, tf.constant(self.settings.n0, tf.int64)),
            tf.fill(rows, tf.constant(self.settings.n, tf.int64)),
            tf.fill(rows, tf.constant(self.settings.alpha, tf.float64)),
        )

    def certify_with(
        self,
        images: tf.Tensor,
        seed: tf.Tensor,
        n0: tf.Tensor,
        n: tf.Tensor,
        alpha: tf.Tensor,
    ) -> Outputs:
        """CERTIFY with numbers and seed of the client's, row by row.

        The limit of draws holds for each round; the votes of a round say how
        many it made.
        """
        sound = self._accepts(images) & _is_probability(alpha)
        sound &= (n0 > 0) & (n > 0)
        n0, n = self._draws(sound, n0), self._draws(sound, n)
        # The two rounds as rows of one call: one loop, one network.
        counts = self._count(
            tf.concat([images, images], 0),
            tf.concat([seed, seed], 0),
            tf.concat([tf.zeros_like(n0), n0], 0),
            tf.concat([n0, n], 0),
        )
        selection, counts = tf.split(counts, 2)
        label, radius, p_lower = vote_certificate(
            selection,
            counts,
            self.settings.certify_spec,
            self._smoothing,
            n=n,
            alpha=alpha,
        )
        return {
            "label": label,
            "radius": radius,
            "p_lower": p_lower,
            "counts": counts,
            "selection_counts": selection,
            "n": n,
            "seed": seed,
        }

    def decide(self, images: tf.Tensor, radius: tf.Tensor) -> Outputs:
        """DECIDE at a radius of the client's, with a seed of the server's.

        By the votes of two classes, whatever the form of `certify`: what they
        need of the tables holds for every radius.
        """
        seed = self._new_seeds(images)
        reach = self.settings.decide_spec.max_radius(self._smoothing)
        sound = self._accepts(images) & (radius >= 0.0) & (radius <= reach)
        rows = tf.where(sound)
        at = rows[:, 0]
        found = decide_in_graph(
            SimpleNamespace(
                count=self._count,
                sigma=self.sampler.sigma,
                num_classes=self.sampler.num_classes,
            ),
            tf.gather(images, at),
            tf.gather(seed, at),
            self._tables,
            tf.gather(radius, at),
        )
        refused = tf.zeros_like(seed[:, 0])
        votes = tf.zeros([tf.size(refused), self.sampler.num_classes], tf.int64)
        return {
            "certified": tf.scatter_nd(
                rows, found["certified"], tf.shape(refused, tf.int64)
            ),
            "label": tf.tensor_scatter_nd_update(
                refused + ABSTAIN, rows, found["label"]
            ),
            "counts": tf.tensor_scatter_nd_update(votes, rows, found["counts"]),
            "n": tf.tensor_scatter_nd_update(refused, rows, found["n"]),
            "seed": seed,
        }

    def sample(
        self,
        images: tf.Tensor,
        seed: tf.Tensor,
        first: tf.Tensor,
        n: tf.Tensor,
    ) -> Outputs:
        """Votes of draws first .. first+n-1; any split adds up."""
        addressed = first >= 0
        addressed &= first <= self._most_draws - self.settings.max_n
        n = self._draws(self._accepts(images) & addressed, n)
        return {"counts": self._count(images, seed, first, n), "n": n}

    def bound(
        self, k: tf.Tensor, k2: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor
    ) -> Outputs:
        """The certificate that counts are worth, with runner-up or without."""
        # The bounds take a row with alpha = 0 for one that makes no sense.
        alpha = tf.where(_is_probability(alpha), alpha, tf.zeros_like(alpha))
        rest = n, alpha, self._smoothing.sigma, self._smoothing.distance
        one = bounds.certificate(k, None, *rest)
        two = bounds.certificate(k, k2, *rest)
        plain = k2 == signature.NO_RUNNER_UP
        return {
            "p_lower": tf.where(plain, one[0], two[0]),
            "radius": tf.where(plain, one[1], two[1]),
        }

    def describe(self, query: tf.Tensor) -> Outputs:
        """What this export is, once a row."""
        text = tf.constant(self.metadata_json)
        return {"metadata_json": tf.fill(tf.shape(query), text)}

    def predict_bytes(self, image_bytes: tf.Tensor) -> Outputs:
        """As `predict`, on image files."""
        return self.predict(self._decoded(image_bytes))

    def certify_bytes(self, image_bytes: tf.Tensor) -> Outputs:
        """As `certify`, on image files."""
        return self.certify(self._decoded(image_bytes))

    # -- their parts ---------------------------------------------------------

    def _accepts(self, images: tf.Tensor) -> tf.Tensor:
        """Which rows are images that this certifier may speak about.

        What the certifier refuses in process; nothing is clipped, for then the
        certificate would be about another image.
        """
        inside = (images >= 0.0) & (images <= 1.0)  # NaN is neither
        return tf.reduce_all(inside, [1, 2, 3])

    def _draws(self, accepted: tf.Tensor, n: tf.Tensor | int) -> tf.Tensor:
        """The draws to make of those asked for, int64 [B]."""
        n = tf.convert_to_tensor(n, tf.int64)
        n = tf.clip_by_value(n, 0, self.settings.max_n)
        return tf.where(accepted, n, tf.constant(0, tf.int64))

    def _new_seeds(self, images: tf.Tensor) -> tf.Tensor:
        """A seed of the server's for each row, int64 [B, 2]."""
        make = self._key.fresh
        if self.settings.seed == "keyed":
            make = self._key.keyed
        return make(images, self.sampler.noise)

    def _decoded(self, image_bytes: tf.Tensor) -> tf.Tensor:
        """Image files as float32 [B, H, W, C]; an empty string as no image."""
        shape = list(self.sampler.image_shape)
        # Looked up, as an optimiser may turn a division into a product.
        levels = tf.constant(np.arange(256, dtype=np.float32) / np.float32(255))

        def decoded(file: tf.Tensor) -> tf.Tensor:
            pixels = tf.io.decode_image(
                file, channels=shape[-1], expand_animations=False
            )
            pixels = tf.gather(levels, tf.cast(pixels, tf.int32))
            return tf.ensure_shape(pixels, shape)

        def one(file: tf.Tensor) -> tf.Tensor:
            return tf.cond(
                tf.strings.length(file) > 0,
                lambda: decoded(file),
                lambda: tf.fill(shape, np.float32(np.nan)),
            )

        spec = tf.TensorSpec(shape, tf.float32)
        return tf.map_fn(one, image_bytes, fn_output_signature=spec)


def _same_rows(inputs: list[tf.Tensor]) -> list[tf.Operation]:
    """Refuses inputs of unequal length, which would be broadcast or cut.

    No fault of one row: a server that puts requests together looks for it.
    """
    rows = [tf.shape(value)[0] for value in inputs]
    text = "the inputs must have the same number of rows, but have"
    return [
        tf.raw_ops.Assert(
            condition=tf.reduce_all(tf.equal(rows, rows[0])),
            data=[text, rows],
            summarize=len(inputs),
        )
    ]


def _is_probability(alpha: tf.Tensor) -> tf.Tensor:
    return (alpha > 0.0) & (alpha < 1.0)
