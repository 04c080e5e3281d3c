"""The list of all studies."""

from fedgate.firmware_sim.studies import (
    attacks,
    bridges,
    building_alarms,
    building_federation,
    building_tables,
    esn_memory,
    esn_readout,
    esn_streams,
    esn_wesad,
    federated_svdd,
    fleet_causes,
    kernel_widths,
    robust_scaling,
    robust_sensitivity,
    robust_svm,
    stress,
)
from fedgate.firmware_sim.studies.study import Study

STUDIES: dict[str, Study] = {
    "attacks": attacks.STUDY,
    "bridges": bridges.STUDY,
    "building-alarms": building_alarms.STUDY,
    "building-federation": building_federation.STUDY,
    "building-tables": building_tables.STUDY,
    "esn-memory": esn_memory.STUDY,
    "esn-readout": esn_readout.STUDY,
    "esn-streams": esn_streams.STUDY,
    "esn-wesad": esn_wesad.STUDY,
    "federated-svdd": federated_svdd.STUDY,
    "fleet-causes": fleet_causes.STUDY,
    "kernel-widths": kernel_widths.STUDY,
    "robust-svm": robust_svm.STUDY,
    "robust-svm-scaling": robust_scaling.STUDY,
    "robust-svm-sensitivity": robust_sensitivity.STUDY,
    "stress": stress.STUDY,
}
