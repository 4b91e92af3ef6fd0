"""The certifier as TensorFlow graphs, one for each signature.

Counts, bounds and labels are those of `rs_keras.Certifier`; here they get the
inputs and outputs of `export/signature.py`, and guards. An invalid image must
not fail the request, as a server may have put other images beside it: such a
row draws nothing (n = 0), abstains, and certifies nothing.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
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
from rs_keras.certification.votes_to_results import decide_label
from rs_keras.certification.votes_to_results import vote_certificate
from rs_keras.classifiers.adapters import prepared
from rs_keras.classifiers.graphs import ConcreteFunction
from rs_keras.export import metadata
from rs_keras.export import signature
from rs_keras.export.settings import Settings
from rs_keras.noise.draws import addressed_draws
from rs_keras.noise.keyed_seeds import SeedKey

Outputs = dict[str, tf.Tensor]

# The first bytes of a PNG file.
_PNG = b"\x89PNG\r\n\x1a\n"


def signatures_of(settings: Settings) -> dict[str, signature.Signature]:
    """Returns the signatures that an export with these settings offers."""
    extra = signature.BYTES_SIGNATURES if settings.image_bytes else {}
    return {**signature.SIGNATURES, **extra}


def internal_signatures_of(
    settings: Settings,
) -> dict[str, signature.Signature]:
    """Returns those that are for servers alone."""
    internal = dict(signature.INTERNAL_SIGNATURES)
    if not settings.image_bytes:
        del internal[signature.PREPARE_BYTES]
    return internal


def smoothing_of(sampler: Sampler) -> SmoothingSpec:
    """Returns the noise of the sampler."""
    sigma, noise = sampler.sigma, sampler.noise
    distance = noise_distance(noise, sigma, sampler.image_shape)
    return SmoothingSpec(sigma, noise, distance=distance)


def traced_count(sampler: Sampler) -> ConcreteFunction:
    """Returns `sampler.count`, traced.

    One function for all signatures: the network is stored once.
    """
    images = tf.TensorSpec([None, *sampler.image_shape], tf.float32)
    seeds = tf.TensorSpec([None, 2], tf.int64)
    rows = tf.TensorSpec([None], tf.int64)
    count = tf.function(sampler.count)
    return count.get_concrete_function(images, seeds, rows, rows)


@dataclass(eq=False, repr=False)
class CertifierGraph:
    """Traces a certifier's signatures.

    Args:
        sampler: The certifier's, for this shape of images.
        count: `traced_count(sampler)`.
        settings: Of the export.
        metadata_json: The answer of `describe`.
        key: Makes the seeds. It is in the graph, and in no answer.
    """

    sampler: Sampler
    count: ConcreteFunction
    settings: Settings
    metadata_json: str
    key: SeedKey

    def __post_init__(self) -> None:
        self._identity = metadata.identity(json.loads(self.metadata_json))
        self._smoothing = smoothing_of(self.sampler)
        self._tables = decision_tables(
            self.settings.decide_spec, self._smoothing
        )

    def concrete_functions(self) -> dict[str, ConcreteFunction]:
        """Returns a traced function for each signature."""
        signatures = {
            **signatures_of(self.settings),
            **internal_signatures_of(self.settings),
        }
        return {
            name: self._traced(getattr(self, name), fields)
            for name, fields in signatures.items()
        }

    def _traced(
        self, method: Callable[..., Outputs], fields: signature.Signature
    ) -> ConcreteFunction:
        """Traces a method with the inputs and outputs of a signature."""
        sizes = self.sampler.image_shape, self.sampler.num_classes
        specs = {
            name: tf.TensorSpec(
                [None, *field.row_shape(*sizes)], field.dtype, name
            )
            for name, field in fields.inputs.items()
        }

        def served(**inputs: tf.Tensor) -> Outputs:
            # Servers do not check shapes: without this check, inputs of a
            # wrong but broadcastable shape would give a wrong answer.
            inputs = {
                name: tf.ensure_shape(value, specs[name].shape)
                for name, value in inputs.items()
            }
            with tf.control_dependencies(_same_rows(list(inputs.values()))):
                inputs = {k: tf.identity(v) for k, v in inputs.items()}
            rows = tf.shape(next(iter(inputs.values())))[:1]
            export = tf.fill(rows, tf.constant(self._identity, tf.int64))
            outputs = {"export": export, **method(**inputs)}
            return {
                name: tf.identity(outputs[name], name)
                for name in fields.outputs
            }

        return tf.function(served).get_concrete_function(**specs)

    # -- the signatures ------------------------------------------------------

    def predict(self, images: tf.Tensor) -> Outputs:
        """PREDICT with the export's settings and a seed of the server's."""
        seed = self._new_seeds(images)
        n = self._draws(self._accepts(images), self.settings.predict_n)
        counts = self.count(images, seed, tf.zeros_like(n), n)
        label, p_value = decide_label(
            counts, self.settings.alpha, n, self._smoothing.distance
        )
        return dict(label=label, counts=counts, p_value=p_value, n=n, seed=seed)

    def certify(self, images: tf.Tensor) -> Outputs:
        """CERTIFY with the export's settings and a seed of the server's."""
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
        """CERTIFY with the client's numbers and seed, row by row.

        `max_n` limits each round; the sum of its votes is the number of draws.
        """
        valid = self._accepts(images) & _is_probability(alpha)
        valid &= (n0 > 0) & (n > 0)
        n0, n = self._draws(valid, n0), self._draws(valid, n)
        # The two rounds as rows of one call: one loop, one network.
        counts = self.count(
            tf.concat([images, images], 0),
            tf.concat([seed, seed], 0),
            tf.concat([tf.zeros_like(n0), n0], 0),
            tf.concat([n0, n], 0),
        )
        selection, counts = tf.split(counts, 2)
        spec = self.settings.certify_spec
        label, radius, p_lower = vote_certificate(
            selection, counts, spec, self._smoothing, n=n, alpha=alpha
        )
        certificate = dict(label=label, radius=radius, p_lower=p_lower)
        votes = dict(counts=counts, selection_counts=selection)
        return {**certificate, **votes, "n": n, "seed": seed}

    def decide(self, images: tf.Tensor, radius: tf.Tensor) -> Outputs:
        """DECIDE at the client's radius, with a seed of the server.

        Uses the rule for two counts, whatever the bound of `certify`: its
        tables hold for every radius.
        """
        seed = self._new_seeds(images)
        max_radius = self.settings.decide_spec.max_radius(self._smoothing)
        accepted = self._accepts(images) & (radius >= 0.0)
        rows = tf.where(accepted & (radius <= max_radius))  # [accepted, 1]
        decision = decide_in_graph(
            SimpleNamespace(
                count=self.count,
                sigma=self.sampler.sigma,
                num_classes=self.sampler.num_classes,
            ),
            tf.gather_nd(images, rows),
            tf.gather_nd(seed, rows),
            self._tables,
            tf.gather_nd(radius, rows),
        )
        # The outputs of rows that are not accepted.
        zeros = tf.zeros_like(seed[:, 0])
        refused = {
            "label": zeros + ABSTAIN,
            "counts": tf.tile(zeros[:, None], [1, self.sampler.num_classes]),
            "n": zeros,
        }
        outputs = {
            name: tf.tensor_scatter_nd_update(value, rows, decision[name])
            for name, value in refused.items()
        }
        certified = tf.scatter_nd(
            rows, decision["certified"], tf.shape(zeros, tf.int64)
        )
        return {"certified": certified, "seed": seed, **outputs}

    def sample(
        self, images: tf.Tensor, seed: tf.Tensor, first: tf.Tensor, n: tf.Tensor
    ) -> Outputs:
        """Votes of draws first .. first+n-1; any split adds up."""
        n = self._draws(self._accepts(images), n)
        draws = addressed_draws(self.sampler.image_shape)
        addressed = (first >= 0) & (first <= draws - n)
        n = self._draws(addressed, n)
        return {"counts": self.count(images, seed, first, n), "n": n}

    def bound(
        self, k: tf.Tensor, k2: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor
    ) -> Outputs:
        """p_lower and radius from counts, with runner-up or without."""
        # The bounds treat alpha = 0 as an invalid row.
        alpha = tf.where(_is_probability(alpha), alpha, tf.zeros_like(alpha))
        common = n, alpha, self._smoothing.sigma, self._smoothing.distance
        one_class = bounds.certificate(k, None, *common)
        # A row without a second count has no part in this.
        second = tf.maximum(k2, 0)
        two_classes = bounds.certificate(
            k, second, *common, bound=self.settings.bound
        )
        p_lower, radius = (
            tf.where(k2 == signature.NO_RUNNER_UP, one, two)
            for one, two in zip(one_class[:2], two_classes[:2], strict=True)
        )
        return dict(p_lower=p_lower, radius=radius)

    def describe(self, query: tf.Tensor) -> Outputs:
        """The metadata of this export, once for each row."""
        text = tf.constant(self.metadata_json)
        return {"metadata_json": tf.fill(tf.shape(query), text)}

    def logits(self, images: tf.Tensor) -> Outputs:
        """The base network on these very pixels, without noise.

        Its votes under `Sampler.noisy` are those of `sample`. A network that
        computes in float64 is rounded here.
        """
        logits = prepared(self.sampler.logits)(images)
        return {"logits": tf.cast(logits, tf.float32)}

    def prepare(self, images: tf.Tensor) -> Outputs:
        """What `predict`, `certify` and `decide` fix before the first draw."""
        seed = self._new_seeds(images)
        accepted = self._accepts(images)
        return dict(images=images, accepted=accepted, seed=seed)

    def prepare_bytes(self, image_bytes: tf.Tensor) -> Outputs:
        """As `prepare`, on image files."""
        return self.prepare(self._decoded(image_bytes))

    def predict_bytes(self, image_bytes: tf.Tensor) -> Outputs:
        """As `predict`, on image files."""
        return self.predict(self._decoded(image_bytes))

    def certify_bytes(self, image_bytes: tf.Tensor) -> Outputs:
        """As `certify`, on image files."""
        return self.certify(self._decoded(image_bytes))

    # -- parts of the signatures ---------------------------------------------

    def _accepts(self, images: tf.Tensor) -> tf.Tensor:
        """Which rows are valid images, by the rules of the certifier.

        Nothing is clipped: the certificate would be about another image.
        """
        inside = (images >= 0.0) & (images <= 1.0)  # NaN is neither
        return tf.reduce_all(inside, [1, 2, 3])

    def _draws(self, accepted: tf.Tensor, n: tf.Tensor | int) -> tf.Tensor:
        """The number of draws to make for each row, int64 [B]."""
        n = tf.convert_to_tensor(n, tf.int64)
        n = tf.clip_by_value(n, 0, self.settings.max_n)
        return tf.where(accepted, n, tf.constant(0, tf.int64))

    def _new_seeds(self, images: tf.Tensor) -> tf.Tensor:
        """A new or keyed seed for each row, int64 [B, 2]."""
        is_keyed = self.settings.seed == "keyed"
        make = self.key.keyed if is_keyed else self.key.fresh
        return make(images, self.sampler.noise)

    def _decoded(self, image_bytes: tf.Tensor) -> tf.Tensor:
        """Image files as float32 [B, H, W, C]; NaN for what is no image.

        Such a file must not fail the request, beside whose rows a server may
        have put those of others: an error of an operation would. Those of a
        data set's elements can be ignored.
        """
        shape = list(self.sampler.image_shape)
        no_image = tf.fill(shape, np.float32(np.nan))

        def decoded_or_nan(file: tf.Tensor) -> tf.Tensor:
            files = tf.data.Dataset.from_tensors(file)
            images = files.map(lambda file: decoded_image(file, shape))
            images = images.ignore_errors(log_warning=False)
            return images.reduce(no_image, lambda _, image: image)

        spec = tf.TensorSpec(shape, tf.float32)
        return tf.map_fn(decoded_or_nan, image_bytes, fn_output_signature=spec)


def decoded_image(file: tf.Tensor, shape: list[int]) -> tf.Tensor:
    """Decodes a PNG or JPEG file to float32 [H, W, C] in [0, 1].

    The size that the file claims is checked first: a few bytes can claim any.

    Args:
        file: Its bytes, a scalar.
        shape: [H, W, C].
    """
    size = tf.cond(
        tf.strings.substr(file, 0, len(_PNG)) == _PNG,
        # Width and height, big-endian, of the first chunk.
        lambda: tf.io.decode_raw(
            tf.strings.substr(file, 16, 8), tf.int32, little_endian=False
        )[::-1],
        lambda: tf.image.extract_jpeg_shape(file)[:2],
    )
    wanted = tf.raw_ops.Assert(
        condition=tf.reduce_all(tf.equal(size, shape[:2])),
        data=["the size of an image file is", size],
    )
    with tf.control_dependencies([wanted]):
        file = tf.identity(file)
    pixels = tf.io.decode_image(
        file, channels=shape[-1], expand_animations=False
    )
    # A lookup table: an optimiser may turn a division into a product.
    levels = tf.constant(np.arange(256, dtype=np.float32) / np.float32(255))
    pixels = tf.gather(levels, tf.cast(pixels, tf.int32))
    return tf.ensure_shape(pixels, shape)


def _same_rows(inputs: list[tf.Tensor]) -> list[tf.Operation]:
    """Fails for inputs of unequal length, which would be broadcast or cut.

    Not the fault of a single row, and a batching server checks it first.
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
