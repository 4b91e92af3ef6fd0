"""Attacks on smoothed classifiers: what an adversary finds, in L2."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.attacks.attacked import (
        AttackedClassifier as AttackedClassifier,
    )
    from rs_keras.attacks.balls import along as along
    from rs_keras.attacks.balls import distances as distances
    from rs_keras.attacks.balls import nearest_on_plane as nearest_on_plane
    from rs_keras.attacks.balls import project as project
    from rs_keras.attacks.base import Attack as Attack
    from rs_keras.attacks.base import Task as Task
    from rs_keras.attacks.dataset import attack_dataset as attack_dataset
    from rs_keras.attacks.images import AttackResult as AttackResult
    from rs_keras.attacks.images import attack as attack
    from rs_keras.attacks.pgd import PGD as PGD
    from rs_keras.attacks.random_search import RandomSearch as RandomSearch
    from rs_keras.attacks.smallest import (
        SmallestPerturbation as SmallestPerturbation,
    )

__all__, __getattr__, __dir__ = attach(__name__)
