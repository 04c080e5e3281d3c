"""Studies by name: each reproduces tables of one paper from an experiment file and puts paper and measured side by
side.
"""

from firmware_sim.studies.study import Cell, Figures, Study, StudyOptions

STUDIES: dict[str, Study] = {}

__all__ = ["STUDIES", "Cell", "Figures", "Study", "StudyOptions"]
