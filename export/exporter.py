"""Writes a certifier as a SavedModel that TF Serving runs."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

import rs_keras
from rs_keras import _compat
from rs_keras import bounds
from rs_keras._checks import check_count
from rs_keras.certification.certifier import Certifier
from rs_keras.certification.sampling import Sampler
from rs_keras.classifiers.adapters import traced_classifier
from rs_keras.classifiers.fingerprint import fingerprint
from rs_keras.datasets.photographs import Resize
from rs_keras.export import classifier
from rs_keras.export import graph
from rs_keras.export import metadata
from rs_keras.export import signature
from rs_keras.export import smoke_test
from rs_keras.export import versions
from rs_keras.export.settings import Settings
from rs_keras.export.settings import default_decide_n
from rs_keras.noise import keyed_seeds

# Bytes of a secret that is made here.
_SECRET_BYTES = 32


def export_certifier(
    certifier: Certifier,
    directory: str | Path,
    n0: int = 100,
    n: int = 10_000,
    alpha: float = 1e-3,
    predict_n: int = 1_000,
    max_n: int = 1_000_000,
    *,
    version: int | None = None,
    runner_up: bool = True,
    bound: str = "clopper_pearson",
    class_names: Sequence[str] | None = None,
    image_bytes: bool = False,
    warmup: bool = True,
    seed: str = "fresh",
    image_shape: Sequence[int] | None = None,
    decide_n: int | None = None,
    key: keyed_seeds.Key = None,
    resize: Resize | None = None,
) -> Path:
    """Writes a version of a certifier for TF Serving.

    The signatures are those of `rs_keras.export.signature`. The version is
    written under another name, run in the server's runtime, and renamed: what
    does not work never gets a number.

    The seeds rest on a secret that lies in the version's files, so only owner
    and group may read them (modes 0640 and 0750, whatever the umask). Whoever
    knows the secret can predict the noise and make images that are certified
    falsely: then export again, with another secret, and remove the version.

    Args:
        certifier: What to serve; its graph is written, not a copy of it.
        directory: Of all versions, as `exports/mnist`; made if need be.
        n0: Draws with which `certify` selects the class.
        n: Draws with which `certify` bounds it.
        alpha: Probability of a wrong answer of `certify`, `decide` and
            `predict`, for each image, in (0, 1).
        predict_n: Draws of `predict`.
        max_n: The most draws per row of one request; one that asks for more
            gets these, and the output `n` says so.
        version: A whole number >= 1 that does not exist; the next when None.
        runner_up: As in `Certifier.certify`.
        bound: "clopper_pearson" or "joint", as in `Certifier.certify`.
        class_names: One a class, for clients to show.
        image_bytes: Whether to add `predict_bytes` and `certify_bytes`, which
            take PNG or JPEG files of the model's own size. PNG is exact; a
            certificate for a JPEG is about the pixels it decodes to. Files of
            another number of channels or bits are converted first.
        warmup: Whether to add the requests that a server runs as it loads.
        seed: "fresh" (each request gets new seeds, under a secret that is made
            now) or "keyed" (`predict`, `certify` and `decide` make the seed
            from the image and `key`: who asks again gets the same answer
            again, and so cannot ask until the noise errs; where the
            certifier has noise="float", another last bit of a pixel is
            another image). Clients of `certify_with` and `sample` choose
            theirs: offer these to clients you trust.
        image_shape: (H, W, C), where the model does not tell.
        decide_n: The most draws of `decide`, with the `n0` that fix the class;
            100_000 when None, or `n0` + `max_n` where that is less.
        key: Of keyed seeds: the secret (bytes) or the name of a file that
            holds it. With the same key, `Certifier.certify(seed="keyed")`
            draws the same noise in process. When None, the certifier's key;
            without one, that of the environment variable RS_KERAS_SEED_KEY;
            without that, a secret that is made now.
        resize: How photographs become images of the model, which the metadata
            tell: `rs-keras request` resizes its files so. The signatures take
            images of the model's own size all the same.

    Returns:
        The folder of the version, as `exports/mnist/1`.

    Raises:
        ValueError: If an argument is out of its range, or the certifier
            cannot run in TF Serving.
        OSError: If `directory` cannot be written to, or the version
            exists.

    Example:

    >>> import tempfile
    >>> from rs_keras import Certifier
    >>> from rs_keras.export import export_certifier
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_certifier(certifier, folder, image_shape=(4, 4, 3)).name
    '1'
    """
    if not isinstance(certifier, Certifier):
        raise ValueError(
            "`certifier` must be an rs_keras.Certifier. "
            f"Received: {type(certifier).__name__}"
        )
    decide_n = default_decide_n(n0, max_n) if decide_n is None else decide_n
    settings = Settings(
        n0=n0,
        n=n,
        alpha=alpha,
        predict_n=predict_n,
        max_n=max_n,
        runner_up=runner_up,
        bound=bound,
        class_names=None if class_names is None else tuple(class_names),
        image_bytes=image_bytes,
        seed=seed,
        decide_n=decide_n,
    )
    secret = seed_key(certifier, settings.seed, key)
    if version is not None:
        check_count("version", version)
    base = versions.check_target(directory, version)
    shape = classifier.image_shape_of(certifier.model, image_shape)
    settings.check_image_shape(shape)
    if resize is not None and (resize.height, resize.width) != shape[:2]:
        raise ValueError(
            "`resize` must be the height and width of the model's images, "
            f"{shape[0]} and {shape[1]}. Received: {resize}"
        )
    sampler = certifier.sampler(shape)
    settings.check_classes(sampler.num_classes)
    requests = smoke_test.smoke_requests(sampler, settings)
    # It also checks that the model gives logits, one image by itself.
    sample = requests[signature.SAMPLE]
    counts = certifier.sample(
        sample["images"], int(sample["n"][0]), sample["seed"]
    )
    count = graph.traced_count(sampler)
    classifier.check_servable(count)
    facts = _metadata(certifier, sampler, settings, resize)
    text = metadata.to_json(facts)
    traced = graph.CertifierGraph(sampler, count, settings, text, secret)
    with versions.scratch(base) as folder:
        _save(folder, traced, certifier.model)
        metadata.write(folder, text)
        if warmup:
            smoke_test.write_warmup(folder, requests)
        answers = smoke_test.run_requests(folder, requests)
        smoke_test.check_counts(answers[signature.SAMPLE]["counts"], counts)
        return versions.publish(folder, base, version)


def seed_key(
    certifier: Certifier, seed: str, key: keyed_seeds.Key
) -> keyed_seeds.SeedKey:
    """Returns the secret of the seeds: for fresh ones always a new one."""
    if seed == "fresh" and key is not None:
        raise ValueError(
            "`key` must be None for seed='fresh', whose secret is made at "
            "each export. Received: a key"
        )
    if seed == "keyed":
        key = certifier._key if key is None else key
        if key is not None or keyed_seeds.ENVIRONMENT in os.environ:
            return keyed_seeds.load_key(key)
    return keyed_seeds.SeedKey(os.urandom(_SECRET_BYTES))


def _metadata(
    certifier: Certifier,
    sampler: Sampler,
    settings: Settings,
    resize: Resize | None,
) -> dict[str, Any]:
    smoothing = graph.smoothing_of(sampler)
    logits = traced_classifier(sampler.logits, sampler.image_shape)
    facts = {
        "format": metadata.FORMAT,
        "library": f"rs-keras {rs_keras.__version__}",
        "tensorflow": tf.__version__,
        "sigma": certifier.sigma,
        "noise": certifier.noise,
        "total_variation": smoothing.distance,
        "dtype": certifier.dtype,
        "num_classes": sampler.num_classes,
        "image": {
            "shape": list(sampler.image_shape),
            "dtype": "float32",
            "range": [0, 1],
        },
        "max_radius": bounds.max_radius(
            settings.n,
            settings.alpha,
            certifier.sigma,
            rule=settings.bound,
            runner_up=settings.runner_up,
            distance=smoothing.distance,
        ),
        "decide_max_radius": settings.decide_spec.max_radius(smoothing),
        "signatures": sorted(
            [signature.DEFAULT, *graph.signatures_of(settings)]
        ),
        # As in certification logs; None where the model tells no weights.
        "fingerprint": fingerprint(certifier.computing),
        "classifier_sha256": classifier.classifier_hash(logits),
        **dataclasses.asdict(settings),
        **(resize.settings() if resize else {}),
    }
    return {**facts, "guarantee": metadata.guarantee(facts)}


def _save(folder: Path, traced: graph.CertifierGraph, model: Any) -> None:
    root = tf.Module()
    root.weights = classifier.variables_of(traced.count)
    tables = classifier.has_other_resources(traced.count)
    if tables and hasattr(model, "signatures"):
        # A loaded SavedModel restores its tables by itself.
        root.model = model
    functions = traced.concrete_functions()
    functions = {signature.DEFAULT: functions[signature.PREDICT], **functions}
    # Gradients are not served, and those of some bounds double the file.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    try:
        with _compat.log_errors_only():
            tf.saved_model.save(root, str(folder), functions, options)
    except AssertionError as error:
        raise ValueError(
            "`model` must keep its state in TensorFlow variables to be "
            f"exported: {error}"
        ) from error
