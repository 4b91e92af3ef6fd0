"""The papers' hyper-parameters, as data: what each number is and whence.

Where text and released command differ, both are in the source and the command
is used: the commands made the tables.

References:
- SmoothMix: [Jeong et al., 2021](https://arxiv.org/abs/2111.09277), and the
  commands in EXPERIMENTS.MD of github.com/jh-jeong/smoothmix
- CAT-RS: [Jeong et al., 2023](https://arxiv.org/abs/2212.09000), and the
  commands in EXPERIMENTS.MD of github.com/alinlab/smoothing-catrs
- MACER: [Zhai et al., 2020](https://arxiv.org/abs/2001.02378)
- Consistency: [Jeong and Shin, 2020](https://arxiv.org/abs/2006.04062)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any

# The references load batches of this size. Methods with m noises cut them
# into m parts and make one step on each.
LOADED_BATCH = 256

_MIX = "command of jh-jeong/smoothmix"
_CAT = "command of alinlab/smoothing-catrs"
_LATE = (
    "; the scheduler steps after an epoch with that epoch's number, so a drop "
    "at 30 acts from epoch 31 (counted from 0)"
)


@dataclass(frozen=True)
class Family:
    """What the methods share on similar data sets.

    Attributes:
        datasets: The names, the published ones first.
        published: How many of these names the papers report on.
        model: Name and arguments of the network.
        learning_rate: At the start.
        drop_every: Epochs between drops by a factor of ten, as in the
            commands.
        epochs: Of the whole run.
        sources: Where from, by dotted name.
    """

    datasets: tuple[str, ...]
    published: int
    model: Mapping[str, Any]
    learning_rate: float
    drop_every: int
    epochs: int
    sources: Mapping[str, str]


@dataclass(frozen=True)
class Setting:
    """Arguments of a method on a family of data sets.

    Attributes:
        trainer: Name of the class.
        common: Arguments for every sigma.
        by_sigma: Further arguments for each published sigma.
        source: Where the arguments are from.
        sources: Where single ones are from, or differ, by dotted name.
        parts: Whether a step takes an m-th of the loaded batch.
        other: Fields that differ from the family's (`drops`, `epochs`, ...).
        teacher: Of the soft labels; empty for none.
    """

    trainer: str
    source: str
    common: Mapping[str, Any] = field(default_factory=dict)
    by_sigma: Mapping[float, Mapping[str, Any]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    parts: bool = True
    other: Mapping[str, Any] = field(default_factory=dict)
    teacher: Mapping[str, Any] = field(default_factory=dict)


FAMILIES = {
    "mnist": Family(
        datasets=("mnist", "fashion_mnist", "fashion_mini"),
        published=2,
        model={"name": "lenet"},
        learning_rate=0.01,
        drop_every=30,
        epochs=90,
        sources={
            "optimizer": "SGD, momentum .9, decay 1e-4: SmoothMix, appendix "
            "C; Nesterov in that text, not in the code",
            "schedule": f"{_MIX}; SmoothMix, appendix C.1{_LATE}",
        },
    ),
    "cifar": Family(
        datasets=("cifar10", "cifar100", "svhn_cropped"),
        published=2,
        model={"name": "cifar_resnet", "depth": 110},
        learning_rate=0.1,
        drop_every=50,
        epochs=150,
        sources={
            "optimizer": "SGD, momentum .9, decay 1e-4: SmoothMix, appendix "
            "C; Nesterov in that text, not in the code",
            "schedule": f"{_MIX}; SmoothMix, appendix C.1{_LATE}",
        },
    ),
    "imagenet": Family(
        datasets=("imagenet2012",),
        published=1,
        model={"name": "resnet50"},
        learning_rate=0.1,
        drop_every=30,
        epochs=90,
        sources={
            "optimizer": "SGD, momentum .9, decay 1e-4: SmoothMix, appendix "
            "C; Nesterov in that text, not in the code",
            "schedule": f"SmoothMix, appendix C.1{_LATE}",
        },
    ),
}

# For trials on one machine; no paper has it.
DEMO_EPOCHS = {"fashion_mini": 30}

_MACER = {"num_noise": 16, "beta": 16.0, "gamma": 8.0}
_MACER_OWN = {
    "learning_rate": 0.01,
    "weight_decay": 5e-4,
    "drops": (200, 400),
    "epochs": 440,
    "batch_size": 64,
}
_MACER_OWN_SOURCE = (
    "MACER, section 5 and table 4: 440 epochs at batch size 64, rate .01 "
    "dropped at 200 and 400, decay 5e-4; its networks do not normalise images"
)
_TEACHER = {"sigma": 0.25, "n": 10_000}
_TEACHER_SOURCE = (
    f"{_CAT}: Gaussian at sigma .25 for every sigma, 10,000 hard votes an "
    "image (over augmented images there, over images as they are here)"
)
_LONGER = {"drops": (51, 101), "epochs": 150}

_MNIST_MIX = {
    0.25: {"steps": 2},
    0.5: {"steps": 4},
    1.0: {"steps": 8},
}
_MNIST_MIX_ETA1 = {**_MNIST_MIX, 0.25: {"steps": 3}}
_MNIST_MIX_STEPS = {
    "trainer.steps": "command: 3 at sigma .25 with eta 1 (used there), 2 with "
    "eta 5; text: 2 for both"
}


def _mnist_mix(eta: float, one_step: bool) -> Setting:
    """SmoothMix on MNIST: step size 1, m = 4."""
    return Setting(
        "SmoothMix",
        f"{_MIX}; SmoothMix, table 2",
        {
            "num_noise": 4,
            "step_size": 1.0,
            "eta": eta,
            "one_step_adversary": one_step,
            "warmup_epochs": 10,
        },
        _MNIST_MIX_ETA1 if eta == 1.0 else _MNIST_MIX,
        _MNIST_MIX_STEPS,
    )


def _cifar_mix(one_step: bool) -> Setting:
    """SmoothMix on CIFAR-10: T = 4, m = 2, step size 2 sigma."""
    return Setting(
        "SmoothMix",
        f"{_MIX}; SmoothMix, section 4 and table 3",
        {
            "num_noise": 2,
            "steps": 4,
            "eta": 5.0,
            "one_step_adversary": one_step,
            "warmup_epochs": 10,
        },
        {
            0.25: {"step_size": 0.5},
            0.5: {"step_size": 1.0},
            1.0: {"step_size": 2.0},
        },
        {
            "trainer.one_step_adversary": "best ACR: without at sigma .25, "
            "with at .5 and 1.0 (the baselines of CAT-RS)"
        },
    )


# By method, for all families that have no settings of their own below.
COMMON: dict[str, Setting] = {
    "gaussian": Setting("Gaussian", f"{_MIX}; Cohen et al., 2019", parts=False),
}

SETTINGS: dict[str, dict[str, Setting]] = {
    "mnist": {
        "stability": Setting(
            "Stability",
            f"{_MIX}; SmoothMix, appendix C.2",
            {"weight": 2.0},
            parts=False,
        ),
        "smoothadv": Setting(
            "SmoothAdv",
            f"{_MIX}; SmoothMix, appendix C.2",
            {
                "num_noise": 4,
                "adversary": "pgd",
                "epsilon": 255 / 256,
                "steps": 10,
                "warmup_epochs": 10,
            },
            sources={"trainer.epsilon": "command: 255/256 (used); text: 1.0"},
        ),
        "macer": Setting(
            "MACER",
            f"{_MIX}; SmoothMix, appendix C.2",
            {**_MACER, "deferred_epochs": 31},
            {
                0.25: {"weight": 16.0},
                0.5: {"weight": 16.0},
                1.0: {"weight": 6.0},
            },
            {
                "trainer.deferred_epochs": "`--deferred`: weight 0 up to and "
                "with epoch 30; the text does not say it",
                "trainer.weight": "sigma 1.0: 6 for stability (SmoothMix); "
                "MACER, appendix C.2.1: 16 for every sigma",
            },
            parts=False,
        ),
        "macer_original": Setting(
            "MACER",
            "MACER, appendix C.2.1",
            {**_MACER, "weight": 16.0},
            sources={
                "optimizer": _MACER_OWN_SOURCE,
                "schedule": _MACER_OWN_SOURCE,
            },
            parts=False,
            other=_MACER_OWN,
        ),
        "consistency": Setting(
            "Consistency",
            f"{_MIX}; SmoothMix, appendix C.2",
            {"num_noise": 2, "entropy_weight": 0.5},
            {
                0.25: {"weight": 10.0},
                0.5: {"weight": 5.0},
                1.0: {"weight": 5.0},
            },
        ),
        "smoothmix": _mnist_mix(5.0, False),
        "smoothmix_onestep": _mnist_mix(5.0, True),
        "smoothmix_eta1": _mnist_mix(1.0, False),
        "smoothmix_onestep_eta1": _mnist_mix(1.0, True),
        "smoothmix_T1": Setting(
            "SmoothMix",
            "SmoothMix, appendix H, table 9: (alpha, T) = (8, 1), at sigma "
            "1.0; elsewhere alpha = 8 sigma, as alpha T is in the table",
            {
                "num_noise": 4,
                "steps": 1,
                "eta": 1.0,
                "one_step_adversary": False,
                "warmup_epochs": 10,
            },
            {
                0.25: {"step_size": 2.0},
                0.5: {"step_size": 4.0},
                1.0: {"step_size": 8.0},
            },
        ),
        "catrs": Setting(
            "CATRS",
            "names of the folders of results in alinlab/smoothing-catrs, at "
            "sigma .25; other sigmas are not stated",
            {"num_noise": 4, "steps": 4, "epsilon": 1.0, "weight": 1.0},
            sources={
                "teacher": _TEACHER_SOURCE,
                "schedule": "the published training log has 150 epochs with "
                f"drops every 50{_LATE}",
            },
            other=_LONGER,
            teacher=_TEACHER,
        ),
    },
    "cifar": {
        "stability": Setting(
            "Stability",
            f"{_CAT}; SmoothMix, appendix C.2",
            by_sigma={
                0.25: {"weight": 2.0},
                0.5: {"weight": 2.0},
                1.0: {"weight": 1.0},
            },
            parts=False,
        ),
        "smoothadv": Setting(
            "SmoothAdv",
            _CAT,
            {"adversary": "pgd", "steps": 10, "warmup_epochs": 10},
            {
                0.25: {"num_noise": 4, "epsilon": 1.0},
                0.5: {"num_noise": 8, "epsilon": 1.0},
                1.0: {"num_noise": 2, "epsilon": 2.0},
            },
            {
                "trainer.num_noise": "command: 4, 8, 2 (used); SmoothMix, "
                "appendix C.2: 8, for the published models of Salman et al.",
                "trainer.epsilon": "command: 1, 1, 2 (used); SmoothMix, "
                "appendix C.2: 1.0 throughout",
            },
        ),
        "macer": Setting(
            "MACER",
            _CAT,
            _MACER,
            {
                0.25: {"weight": 12.0},
                0.5: {"weight": 6.0},
                1.0: {"weight": 12.0, "deferred_epochs": 51},
            },
            {
                "trainer.weight": "command: 6 at sigma .5 (used); MACER, "
                "table 4, and the name of the certified folder: 4",
                "trainer.deferred_epochs": "`--deferred` at sigma 1.0: weight "
                "0 up to and with epoch 50",
            },
            parts=False,
        ),
        "macer_original": Setting(
            "MACER",
            "MACER, table 4",
            _MACER,
            {
                0.25: {"weight": 12.0},
                0.5: {"weight": 4.0},
                1.0: {"weight": 12.0, "deferred_epochs": 200},
            },
            {
                "optimizer": _MACER_OWN_SOURCE,
                "schedule": _MACER_OWN_SOURCE,
                "trainer.deferred_epochs": "MACER, footnote 5: weight 0 "
                "before the rate drops, at sigma 1.0",
            },
            parts=False,
            other=_MACER_OWN,
        ),
        "consistency": Setting(
            "Consistency",
            f"{_CAT}; SmoothMix, appendix C.2",
            {"num_noise": 2, "entropy_weight": 0.5},
            {
                0.25: {"weight": 20.0},
                0.5: {"weight": 10.0},
                1.0: {"weight": 10.0},
            },
        ),
        "smoothmix": _cifar_mix(False),
        "smoothmix_onestep": _cifar_mix(True),
        "catrs": Setting(
            "CATRS",
            _CAT,
            {"num_noise": 4, "steps": 4, "epsilon": 1.0},
            {
                0.25: {"weight": 0.5},
                0.5: {"weight": 1.0},
                1.0: {"weight": 2.0},
            },
            {"teacher": _TEACHER_SOURCE},
            teacher=_TEACHER,
        ),
    },
    "imagenet": {
        "stability": Setting(
            "Stability",
            "not published; that of CIFAR-10",
            {"weight": 2.0},
            parts=False,
        ),
        "smoothadv": Setting(
            "SmoothAdv",
            "MACER, table 5: the one-sample, one-step models of Salman et al.",
            {
                "num_noise": 1,
                "adversary": "pgd",
                "steps": 1,
                "warmup_epochs": 10,
            },
            {0.5: {"epsilon": 1.0}, 1.0: {"epsilon": 2.0}},
            {"trainer.warmup_epochs": "not published; that of CIFAR-10"},
        ),
        "macer": Setting(
            "MACER",
            "MACER, table 5 and section 5",
            {"num_noise": 2, "beta": 16.0, "gamma": 8.0},
            {
                0.25: {"weight": 6.0},
                0.5: {"weight": 3.0},
                1.0: {"weight": 3.0},
            },
            {"schedule": "MACER, section 5: 120 epochs, drops at 30, 60, 90"},
            parts=False,
            other={"drops": (30, 60, 90), "epochs": 120},
        ),
        "consistency": Setting(
            "Consistency",
            "Consistency, ImageNet experiments",
            {"num_noise": 2, "weight": 5.0},
            {0.5: {"entropy_weight": 0.5}, 1.0: {"entropy_weight": 0.1}},
        ),
        "smoothmix": Setting(
            "SmoothMix",
            "SmoothMix, appendix G; eta 5 as elsewhere (appendix F)",
            {
                "num_noise": 1,
                "steps": 1,
                "step_size": 8.0,
                "eta": 5.0,
                "one_step_adversary": True,
                "one_step_max_norm": 1.0,
                "warmup_epochs": 10,
            },
            {0.5: {}, 1.0: {}},
            {
                "trainer.one_step_adversary": "text: with it, projected to "
                "1.0; the code with T = 1 never records it, so that the clean "
                "side is the image itself (set `steps` to 2 for the text's)"
            },
        ),
        "catrs": Setting(
            "CATRS",
            _CAT,
            {
                "num_noise": 2,
                "steps": 1,
                "epsilon": 1.0,
                "weight": 2.0,
                "confidence_mask": True,
                "doubled_from": 80,
            },
            {1.0: {}},
            {
                "schedule": f"{_CAT}: `--lr_drop 85` on top of the drops at 30 "
                f"and 60{_LATE}",
                "teacher": _TEACHER_SOURCE,
            },
            other={"drops": (31, 61, 85)},
            # The extra drop is CAT-RS's own.
            teacher={**_TEACHER, "drops": [31, 61]},
        ),
    },
}

# Where a data set has published settings of its own within its family.
_SVHN_MACER = Setting(
    "MACER",
    "MACER, appendix C.2.2",
    {**_MACER, "weight": 12.0},
    {0.25: {}, 0.5: {}},
    {"optimizer": _MACER_OWN_SOURCE, "schedule": _MACER_OWN_SOURCE},
    parts=False,
    other=_MACER_OWN,
)
OWN_SETTINGS: dict[str, dict[str, Setting]] = {
    "svhn_cropped": {"macer": _SVHN_MACER, "macer_original": _SVHN_MACER},
}

# The classes whose steps take an m-th of the loaded batch.
IN_PARTS = {
    setting.trainer
    for family in SETTINGS.values()
    for setting in family.values()
    if setting.parts
}
