"""The list of all studies."""

from fedgate.firmware_sim.studies.attacks import study as attacks
from fedgate.firmware_sim.studies.bridges import study as bridges
from fedgate.firmware_sim.studies.building_alarms import study as building_alarms
from fedgate.firmware_sim.studies.building_federation import study as building_federation
from fedgate.firmware_sim.studies.building_tables import study as building_tables
from fedgate.firmware_sim.studies.engine.study import Study
from fedgate.firmware_sim.studies.esn_memory import study as esn_memory
from fedgate.firmware_sim.studies.esn_readout import study as esn_readout
from fedgate.firmware_sim.studies.esn_streams import study as esn_streams
from fedgate.firmware_sim.studies.esn_wesad import study as esn_wesad
from fedgate.firmware_sim.studies.federated_svdd import kernel_widths
from fedgate.firmware_sim.studies.federated_svdd import study as federated_svdd
from fedgate.firmware_sim.studies.fleet_causes import study as fleet_causes
from fedgate.firmware_sim.studies.robust_svm import scaling, sensitivity
from fedgate.firmware_sim.studies.robust_svm import study as robust_svm
from fedgate.firmware_sim.studies.stress import study as stress

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
    "robust-svm-scaling": scaling.STUDY,
    "robust-svm-sensitivity": sensitivity.STUDY,
    "stress": stress.STUDY,
}
