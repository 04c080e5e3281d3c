"""Studies by name: each reproduces tables of one paper from an experiment file and puts paper and measured side by
side.
"""

from firmware_sim.studies import bridges, federated_svdd, robust_scaling, robust_sensitivity, robust_svm
from firmware_sim.studies.study import Cell, Figures, Study, StudyOptions

STUDIES: dict[str, Study] = {
    "bridges": bridges.STUDY,
    "federated-svdd": federated_svdd.STUDY,
    "robust-svm": robust_svm.STUDY,
    "robust-svm-scaling": robust_scaling.STUDY,
    "robust-svm-sensitivity": robust_sensitivity.STUDY,
}

__all__ = ["STUDIES", "Cell", "Figures", "Study", "StudyOptions"]
