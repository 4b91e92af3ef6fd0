"""Networks of the papers: images in [0, 1] to logits, normalised inside."""

from rs_keras.models.dncnn import dncnn
from rs_keras.models.lenet import lenet
from rs_keras.models.pretrained import PRETRAINED
from rs_keras.models.pretrained import Pretrained
from rs_keras.models.pretrained import pretrained
from rs_keras.models.registry import for_dataset
from rs_keras.models.registry import get
from rs_keras.models.registry import names
from rs_keras.models.resnet import cifar_resnet
from rs_keras.models.resnet import resnet18
from rs_keras.models.resnet import resnet50
from rs_keras.models.torch_checkpoints import from_torch_checkpoint

__all__ = [
    "PRETRAINED",
    "Pretrained",
    "cifar_resnet",
    "dncnn",
    "for_dataset",
    "from_torch_checkpoint",
    "get",
    "lenet",
    "names",
    "pretrained",
    "resnet18",
    "resnet50",
]
