"""The made-up fleets of `fedgate.models.testing`, under the name that the tests know them by."""

from fedgate.models.testing.fleet import FEATURE_COUNT as FEATURE_COUNT
from fedgate.models.testing.fleet import FIVE as FIVE
from fedgate.models.testing.fleet import NAMES as NAMES
from fedgate.models.testing.fleet import SHIFT as SHIFT
from fedgate.models.testing.fleet import T0_NS as T0_NS
from fedgate.models.testing.fleet import Gateway as Gateway
from fedgate.models.testing.fleet import auc as auc
from fedgate.models.testing.fleet import fleet as fleet
from fedgate.models.testing.fleet import onnx_scores as onnx_scores
