"""Installs the four rooms of the tree as the one package `rs_keras`."""

import re
from pathlib import Path

from setuptools import find_packages
from setuptools import setup

# The one place for the address of the public repository, without a slash at
# its end. While it is empty, nothing links to a repository.
REPOSITORY = ""

HERE = Path(__file__).parent
# The one place for the version is `rs_keras/__init__.py`.
VERSION = re.search(
    r'^__version__ = "(.+)"$',
    (HERE / "rs_keras" / "__init__.py").read_text(),
    re.M,
)[1]

ROOMS = {
    "rs_keras": "rs_keras",
    "rs_keras.trainers": "trainers",
    "rs_keras.export": "export",
    "rs_keras.serving": "serving",
}
PACKAGES = [
    ".".join(filter(None, (room, package)))
    for room, folder in ROOMS.items()
    for package in ("", *find_packages(folder))
]


# [text](target) and ![text](target), where the target is a file of the tree.
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")
# A picture with the caption in italics below it.
CAPTIONED = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)\s]+\)\n\n\*[^*]+\*\n\n")


def long_description(readme, repository, version):
    """Makes the README readable where its files are not, as on an index.

    With an address, links and pictures lead to the files of the release's tag.
    Without one, links keep their text alone, and pictures are left out with
    their captions: a dead link helps nobody.
    """
    if not repository:
        readme = CAPTIONED.sub("", readme)
        return LINK.sub(lambda found: "" if found[1] else found[2], readme)

    def absolute(found):
        mark, text, target = found.groups()
        kind = "raw" if mark else "blob"
        return f"{mark}[{text}]({repository}/{kind}/v{version}/{target})"

    return LINK.sub(absolute, readme)


def project_urls(repository, version):
    """Returns the links that an index shows beside the description."""
    if not repository:
        return {}
    return {
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/v{version}/CHANGELOG.md",
        "Documentation": f"{repository}/tree/v{version}/docs",
    }


setup(
    name="rs-keras",
    version=VERSION,
    description="Randomized smoothing in Keras: train, certify and serve.",
    long_description=long_description(
        (HERE / "README.md").read_text(), REPOSITORY, VERSION
    ),
    long_description_content_type="text/markdown",
    author="The rs-keras authors",
    project_urls=project_urls(REPOSITORY, VERSION),
    keywords=[
        "adversarial robustness",
        "certified robustness",
        "deep learning",
        "keras",
        "randomized smoothing",
        "tensorflow",
        "tensorflow serving",
    ],
    # An SPDX expression: MIT is the licence of the bundled Fashion-MNIST.
    license_expression="Apache-2.0 AND MIT",
    license_files=["LICENSE", "rs_keras/data/LICENSE.*"],
    python_requires=">=3.11,<3.14",
    packages=PACKAGES,
    package_dir=ROOMS,
    package_data={
        "rs_keras": ["py.typed", "data/*", "data/pretrained/*"],
        "rs_keras.certification": ["*.toml"],
        "rs_keras.cli": ["*.toml"],
        "rs_keras.datasets": ["*.toml"],
        "rs_keras.export": ["*.toml"],
        "rs_keras.report": ["*.html", "*.css", "*.js"],
        "rs_keras.trainers.recipes": ["*.toml"],
        "rs_keras.trainers.reproduction": ["*.md", "*.toml"],
        "rs_keras.serving": ["deploy/*", "deploy/*/*"],
        "rs_keras.serving.demo": ["*.html", "*.css", "*.js"],
    },
    entry_points={"console_scripts": ["rs-keras = rs_keras.cli:main"]},
    install_requires=[
        # 2.20 is the first release for Python 3.13; the private session call
        # of the embedded server is known to work up to 2.21.
        "tensorflow>=2.20,<2.22",
        "keras>=3.12,<3.16",
        "keras-tuner>=1.4.7,<2",
        # keras-tuner imports these two, in every trial and in its Bayesian
        # search, and declares neither.
        "tensorboard>=2.19,<3",
        "scikit-learn>=1.4,<2",
        "tensorflow-probability>=0.25,<0.26",
        # tensorflow-probability imports it and does not declare it.
        "tf-keras>=2.20,<2.22",
        "tensorflow-datasets>=4.9.8,<5",
        # tensorflow-datasets imports it and does not declare it.
        "importlib_resources>=6",
        "tensorflow-serving-api>=2.19,<2.22",
        "grpcio>=1.66,<2",
        "grpcio-health-checking>=1.66,<2",
        "numpy>=1.26,<3",
        "scipy>=1.12,<2",
        "matplotlib>=3.8,<4",
        "packaging>=23",
        "pillow>=10",
        "tqdm>=4.66,<5",
    ],
    extras_require={
        "dev": [
            "build>=1.2",
            # The schema of Compose files comes with it.
            "check-jsonschema>=0.29,<1",
            "cryptography>=42",
            "hypothesis>=6.100",
            # Runs the notebooks.
            "ipykernel>=6.29",
            "jsonschema>=4.23,<5",
            "kubernetes-validate>=1.31,<2",
            "mkdocs-material>=9.5,<10",
            "mkdocstrings-python>=1.12,<3",
            "mpmath>=1.3",
            "mypy>=1.13",
            "nbclient>=0.10",
            "nbformat>=5.10",
            "pandas>=2",
            # Drives the Chromium that is installed; downloads none itself.
            "playwright>=1.40",
            "psutil>=5.9",
            "pyyaml>=6",
            "pytest>=8.2",
            # 3.7 is the first with --no-loadscope-reorder.
            "pytest-xdist>=3.7",
            "ruff>=0.9",
            "waitress>=3,<4",
        ],
        # Whose models the tests certify, and whose search they run, where they
        # are installed; PyTorch, which is large, is tested too where it is.
        "frameworks": [
            "ai-edge-litert>=1.2",
            "keras-hub>=0.20",
            "onnxruntime>=1.18",
            "optuna>=4",
        ],
        # The REST API of the embedded server, with its metrics.
        "rest": ["waitress>=3,<4"],
        # `to_pandas` of certificates and logs.
        "pandas": ["pandas>=2"],
        # The peers that benchmarks/ measures against; nothing else uses them.
        "benchmarks": [
            "adversarial-robustness-toolbox==1.20.*",
            "openvino>=2026.4",
            # ART imports it for its bound and does not declare it.
            "statsmodels>=0.14",
            "torch>=2.4",
        ],
    },
    # No licence among them: the expression above says it.
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Framework :: Jupyter",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Natural Language :: English",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Recognition",
        "Topic :: Security",
        "Topic :: Software Development :: Libraries :: Python Modules",
        "Typing :: Typed",
    ],
)
