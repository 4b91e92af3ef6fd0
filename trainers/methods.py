"""The training methods, each registered by one import, in historical order.

All else that lists methods reads this module: the package, recipes, sweeps,
the command line, the API pages and the contract test. The name of a method is
that of its module.
"""

# isort: off
from rs_keras.trainers.gaussian import Gaussian as Gaussian
from rs_keras.trainers.stability import Stability as Stability
from rs_keras.trainers.smoothadv import SmoothAdv as SmoothAdv
from rs_keras.trainers.macer import MACER as MACER
from rs_keras.trainers.consistency import Consistency as Consistency
from rs_keras.trainers.smoothmix import SmoothMix as SmoothMix
from rs_keras.trainers.catrs import CATRS as CATRS
