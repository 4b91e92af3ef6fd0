"""A new method is one file, one registration, one recipe: measured on a copy.

The fourth is its golden test, which no other file knows of. The copy gets a
method that is all of that; then everything that lists methods is asked.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
METHOD = '''
import keras
import tensorflow as tf

from rs_keras.losses import cross_entropy
from rs_keras.losses import labels_of
from rs_keras.trainers.base import SmoothTrainer
from rs_keras.trainers.tuning.ranges import Log


@keras.saving.register_keras_serializable("rs_keras")
class Largest(SmoothTrainer):
    """Trains on the noisy copy with the largest loss.

    Formula, with the noises eps_j:

        loss = weight * max_j CE(y, f(x + eps_j))
    """

    def __init__(self, model, sigma, num_noise=2, weight=1.0, **kwargs):
        super().__init__(model, sigma, num_noise=num_noise, **kwargs)
        self.weight = weight

    @classmethod
    def search_space(cls, sigma):
        return {"weight": Log(0.5, 2.0)}

    def losses_and_logits(self, images, targets, draw):
        logits = self.noisy_logits(images, draw["noise"])
        losses = cross_entropy(labels_of(targets), logits)
        return {"ce": self.weight * tf.reduce_max(losses, axis=0)}, logits
'''
REGISTRATION = "\nfrom rs_keras.trainers.largest import Largest as Largest\n"
RECIPE = """
[all.largest]
trainer = "Largest"
source = "this test"
arguments = {num_noise = 4}
"""
QUESTIONS = """
import contextlib, io, json, sys, tempfile
from pathlib import Path
from rs_keras import cli
helped = io.StringIO()
with contextlib.redirect_stdout(helped), contextlib.suppress(SystemExit):
    cli.main(["train", "--help"])
helped = " ".join(helped.getvalue().split())
without = "tensorflow" not in sys.modules
from rs_keras import trainers
from rs_keras.trainers import recipes, search_spaces
recipe = recipes.get("cifar10", "largest", sigma=0.5)
small = recipes.get("fashion_mini", "largest", sigma=0.5)
sys.path.insert(0, "docs/site")
import api
sources = Path(tempfile.mkdtemp()) / "sources"
api.lay_out(sources)
pages = [page.identifier for page in api.pages(sources)]
print(json.dumps({
    "package": "Largest" in trainers.__all__,
    "recipe": [recipe.trainer, recipe.sources["trainer"]],
    "methods": "largest" in recipes.methods("imagenet2012"),
    "trainer": type(small.build()).__name__,
    "space": sorted(search_spaces.default(recipe)),
    "help": "catrs, largest, or a variant" in helped,
    "help without TensorFlow": without,
    "page": "rs_keras.trainers.Largest" in pages,
    "formula": "max_j CE" in api.formulas(api.load(sources)),
}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The tree, with one more method: one new file, a line in two others."""
    folder = tmp_path_factory.mktemp("copy")
    unused = shutil.ignore_patterns("__pycache__", "*.keras", "golden")
    for name in ("rs_keras", "trainers", "export", "serving", "docs", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=unused)
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    (folder / "trainers" / "largest.py").write_text(METHOD)
    for name, text in (
        ("methods.py", REGISTRATION),
        ("recipes/hyperparameters.toml", RECIPE),
    ):
        with (folder / "trainers" / name).open("a") as file:
            file.write(text)
    return folder


def run(copy, *words):
    done = subprocess.run(
        [sys.executable, *words],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_everything_that_lists_methods_has_the_new_one(copy):
    [*_, answers] = run(copy, "-c", QUESTIONS).splitlines()
    assert json.loads(answers) == {
        "package": True,
        "recipe": [{"name": "Largest", "num_noise": 4}, "this test"],
        "methods": True,
        "trainer": "Largest",
        "space": ["learning_rate", "weight"],
        "help": True,
        "help without TensorFlow": True,
        "page": True,
        "formula": True,
    }


def test_the_contract_holds_for_the_new_one(copy):
    contract = "tests/integration/test_trainers_contract.py"
    words = "-m pytest -q -p no:cacheprovider -k largest".split()
    said = run(copy, *words, contract)
    tests = (ROOT / contract).read_text().count("@every_trainer\n")
    assert int(re.search(r"(\d+) passed", said)[1]) >= tests > 0
