"""A tiny folder of data in the layouts that the studies read, so that a short profile of each runs from a fresh clone.

Most of it is generated: damage moves a tone, a fault moves a level, stress raises a pulse, so that methods have
something to find. What is measured on it says that a study runs, and nothing of what a method is worth. The
temperatures of NAB and the two tables of breast cancer are the real ones, whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.firmware_sim.studies.datasets.convert import (
    AIR_FAULTS,
    CWRU_FILES,
    CWRU_RATE_HZ,
    CWRU_SENSORS,
    SITE_CHANNELS,
    SKAB_FILES,
    TABLES,
    Z24_RATE_HZ,
    Z24_SENSORS,
    Table,
    scaled,
    write_arrays,
    write_lines,
)
from fedgate.models.arrays import Floats, generator

TABLE_ROWS, PERSON_ROWS = 192, 8
SEPARATION = 3.0  # of the two classes of a table, in deviations
KNOWLEDGE = Table(("STG", "SCG", "STR", "LPR", "PEG"), 403, "")
FLOW_STATISTICS, PRESSURE_STATISTICS = ("CrestFactor", "Mean", "RMS"), ("Mean", "RMS")
SHAPE_STATISTICS = ("Median", "Q1", "Q3", "ACF1", "PACF1")
PUMP = Table(
    (
        *(f"flow_sigstats_{name}" for name in FLOW_STATISTICS),
        *(f"pressure_sigstats_{name}" for name in PRESSURE_STATISTICS),
        *(f"{signal}_tsfeat_{name}" for signal in ("flow", "pressure") for name in SHAPE_STATISTICS),
    ),
    240,
    "",
)
PUMP_CODES = (1, 10, 11, 100, 101, 110, 111)  # of faults, a digit for each of three
HEALTHY_PUMP_ROWS = 42  # as the real table has: all that the study of the robust SVM can take
REAL_ANOMALIES = 10

Z24_STATES = {1: (0, 5.0), 2: (0, 5.0), 5: (1, 6.5), 8: (-1, 5.0), 17: (1, 9.0)}  # label, tone in Hz
Z24_SETUPS, Z24_SAMPLES, Z24_COUNT = 5, 20_480, 3  # sensors of the five
CWRU_SAMPLES = 24_000
PEOPLE, SESSION_S, STRESSED_S = 4, 960, ((300, 480), (720, 840))
WRIST_RATES_HZ = {"bvp": 64.0, "acc": 32.0, "eda": 4.0, "temp": 4.0, "hr": 1.0}
SUBJECTS, SUBJECT_WINDOWS = range(2, 12), 240
CHEST, WRIST = ("acc_x", "acc_y", "acc_z", "ecg", "emg", "eda", "temp", "resp"), ("bvp", "eda", "temp")
WORN = (*(f"chest_{name}" for name in CHEST), *(f"wrist_{name}" for name in (*CHEST[:3], *WRIST)))
STATISTICS = (
    "mean",
    "std",
    "min",
    "max",
    "median",
    "iqr",
    "skew",
    "kurtosis",
    "dom_freq",
    "spectral_energy",
    "spectral_entropy",
)
SKAB_CHANNELS = (
    "Accelerometer1RMS",
    "Accelerometer2RMS",
    "Current",
    "Pressure",
    "Temperature",
    "Thermocouple",
    "Voltage",
    "Volume Flow RateRMS",
)
SKAB_ROWS, VALVE_CLOSED, SKAB_LOST = 620, slice(520, 600), 300  # before the row that is lost a second is missing
ROOMS, ROOM_ROWS, SHORT_ROOM_ROWS, ROOM_STEP_S = 6, 1_900, 200, 300
ROOM_LOST, ROOM_LOST_AT = 60, 400  # steps that are missing of each, as five hours are of the real ones
ROOM_CHANNELS = ("co2_ppm", "humidity_pct", "light", "pir", "temperature_C")
NODES, RUNS, RUN_S = {"A": 2, "C": 3}, 8, 2_400
OFFICE = {"datatraining": ("2015-02-04T17:51:00", 900), "datatest": ("2015-02-02T14:19:00", 500)}
OFFICE_COLUMNS = ("date", "Temperature", "Humidity", "Light", "CO2", "HumidityRatio", "Occupancy")
HEALTHY_DAYS = tuple(f"2009-05-{day:02d}" for day in range(1, 9))
AIR_DAYS = {"mzvav_2_1": (*list(AIR_FAULTS)[:3], *HEALTHY_DAYS), "szcav": (*list(AIR_FAULTS)[3:7], "2017-04-01")}
DISPUTED_DAY = "2007-08-30"  # whose fault is documented and not in the ground truth
SUPPLY, VALVE = "Supply Air Temperature", "Cooling Coil Valve Control Signal"
AIR_COMMON = ("Outdoor Air Temperature", "Mixed Air Temperature", "Return Air Temperature", "Supply Air Fan Status")
AIR_CONTROLS = ("Exhaust Air Damper", "Outdoor Air Damper", "Return Air Damper", "Cooling Coil Valve")
AIR_SIGNALS = tuple(f"{name} Control Signal" for name in ("Supply Air Fan Speed", *AIR_CONTROLS, "Heating Coil Valve"))
AIR_SET_POINTS = {
    "mzvav_2_1": (f"{SUPPLY} Set Point", "Supply Air Duct Static Pressure Set Point"),
    "szcav": (f"{SUPPLY} Heating Set Point", f"{SUPPLY} Cooling Set Point"),
}
AIR_OTHERS = {
    "mzvav_2_1": ("Return Air Fan Status", "Return Air Fan Speed Control Signal", "Supply Air Duct Static Pressure"),
    "szcav": (),
}


def write_tiny(folder: Path, *names: str) -> Path:
    """Write the tiny data below a folder and return it; with `names` only those of `WRITERS`.

    Raises:
        StudyError: there is data already, which is not overwritten.
    """
    names = names or tuple(WRITERS)
    known = [folder / name for name in names if (folder / name).exists()]
    if known:
        raise StudyError(f"{known[0]}: there is data already; name a new folder for the tiny data")
    for name in names:
        WRITERS[name](folder / name)
    return folder


def waves(rng: np.random.Generator, count: int, width: int, period: float) -> Floats:
    """Return waves of one period with noise (count, width)."""
    angle = 2.0 * np.pi * np.arange(count)[:, None] / period + rng.uniform(0.0, 6.3, width)
    return np.asarray(np.sin(angle) + 0.1 * rng.normal(size=(count, width)))


def _stamps(start: str, step_s: int, seconds: NDArray[np.int64]) -> list[str]:
    times = np.datetime64(start, "s") + step_s * seconds
    return [str(time).replace("T", " ") for time in times]


def _texts(x: Floats, digits: int = 4) -> list[list[str]]:
    return [[f"{value:.{digits}f}" for value in row] for row in x.tolist()]


def _write_table(folder: Path, name: str, table: Table, texts: list[list[str]], y: NDArray[np.bool_]) -> None:
    labels = ("1" if is_positive else str(table.negative_label) for is_positive in y)
    lines = ([*cells, label] for cells, label in zip(texts, labels, strict=True))
    write_lines(folder / f"{name}.csv", [[*table.columns, "label"], *lines])


def _write_tables(folder: Path) -> None:
    """Two classes that differ in all columns; of the pump eight, which differ in a column for each of its faults."""
    row = np.arange(TABLE_ROWS)
    for name, table in (TABLES | {"user_knowledge": KNOWLEDGE}).items():
        x = generator(0, 0, name).normal(size=(TABLE_ROWS, len(table.columns)))
        y = row // PERSON_ROWS % 2 == 1 if table.negative_label else row % 10 == 0
        texts = _texts(x + SEPARATION / len(table.columns) ** 0.5 * y[:, None])
        if name == "mammographic_mass":
            texts[0][0] = ""
        _write_table(folder, name, table, texts, y)
    write_lines(folder / "parkinsons.groups.csv", [["subject"], *([f"S{k // PERSON_ROWS:02d}"] for k in row)])
    row = np.arange(PUMP.rows)
    codes = np.where(row < HEALTHY_PUMP_ROWS, 0, np.array(PUMP_CODES)[row % len(PUMP_CODES)])
    x = generator(0, 0, "pump").normal(size=(PUMP.rows, len(PUMP.columns)))
    x[:, :3] += SEPARATION * (codes[:, None] // [100, 10, 1] % 10)
    _write_table(folder, "pump_triplex", PUMP, _texts(x), codes > 0)
    write_lines(folder / "pump_triplex.classes.csv", [["faultCode"], *([str(code)] for code in codes)])
    _write_cells(folder)


def _write_cells(folder: Path) -> None:
    """The real tables of breast cancer, as scikit-learn brings them: all rows; the benign and the first ten others."""
    from sklearn.datasets import load_breast_cancer

    x, benign = load_breast_cancer(return_X_y=True)
    kept = np.flatnonzero((benign == 1) | (np.cumsum(1 - benign) <= REAL_ANOMALIES))
    for name, rows in (("breast_cancer_wdbc", np.arange(len(x))), ("breast_cancer_ad", kept)):
        texts = [[repr(value) for value in row] for row in x[rows].tolist()]
        _write_table(folder, name, TABLES[name], texts, benign[rows] == 0)


def _write_bridge(folder: Path) -> None:
    """Five setups of two healthy states, two damaged ones with another tone, and one that is neither."""
    rng, t_s = generator(0, 0, "bridge"), np.arange(Z24_SAMPLES)[:, None] / Z24_RATE_HZ
    for state, (label, tone_hz) in Z24_STATES.items():
        acc = rng.normal(size=(Z24_SETUPS, Z24_SAMPLES, Z24_COUNT))
        for k in range(5):
            phase = rng.uniform(0.0, 6.3, (Z24_SETUPS, 1, Z24_COUNT))
            acc += np.sin(2.0 * np.pi * (tone_hz + 0.1 * k) * t_s + phase)
        counts, scale = scaled(acc * 1e-4)
        known = {"setups": np.arange(1, Z24_SETUPS + 1), "fs": Z24_RATE_HZ, "state": state, "label": label}
        path = folder / f"state{state:02d}.npz"
        write_arrays(path, acc=counts, scale=scale, channels=Z24_SENSORS[:Z24_COUNT], **known)


def _write_bearing(folder: Path) -> None:
    """Seven conditions, each with a tone of its own."""
    rng = generator(0, 0, "bearing")
    for index, name in enumerate(CWRU_FILES):
        acc, scale = scaled(waves(rng, CWRU_SAMPLES, len(CWRU_SENSORS), 16.0 + 5.0 * index))
        known = {"fs": CWRU_RATE_HZ, "rpm": 1_797, "channels": CWRU_SENSORS, "label": int(name != "normal")}
        write_arrays(folder / f"{name}.npz", acc=acc, scale=scale, **known)


def wrist(number: int) -> dict[str, Any]:
    """Return the arrays of a person whose skin conductance and heart rate rise under stress."""
    rng, second = generator(0, 0, f"wrist-{number}"), np.arange(SESSION_S)
    label = np.zeros(SESSION_S, dtype=np.int8)
    for start_s, stop_s in STRESSED_S:
        label[(second >= start_s + 5 * number) & (second < stop_s)] = 1
    felt = np.convolve(label, np.exp(-np.arange(60) / 20.0) / 20.0)[:SESSION_S]

    def at(rate_hz: float) -> Floats:
        return np.asarray(np.interp(np.arange(round(SESSION_S * rate_hz)) / rate_hz, second, felt))

    rate = 65.0 + 2.0 * number + 12.0 * at(64.0) + np.repeat(rng.normal(0.0, 3.0, SESSION_S), 64)
    wave = 40.0 * np.sin(2.0 * np.pi * np.cumsum(rate / 60.0) / 64.0) + rng.normal(0.0, 3.0, len(rate))
    drift = rng.normal(0.0, 0.02, SESSION_S * 4).cumsum()
    arrays: dict[str, Any] = {
        "bvp": np.round(wave / 0.05).astype(np.int16),
        "acc": rng.normal(0.0, 2.0, (SESSION_S * 32, 3)).astype(np.int8),
        "eda": (number + 2.0 + 1.5 * at(4.0) + drift).astype(np.float32),
        "temp": (33.0 - 0.5 * at(4.0)).astype(np.float32),
        "hr": (65.0 + 2.0 * number + 12.0 * felt[10:]).astype(np.float32),
    }
    label[:9] = -1
    arrays |= {f"{name}_fs": rate_hz for name, rate_hz in WRIST_RATES_HZ.items()}
    arrays |= {f"{name}_t0": 1.5e9 + (10.0 if name == "hr" else 0.0) for name in WRIST_RATES_HZ}
    return {**arrays, "label_1hz": label, "label_t0": 1.5e9, "bvp_scale": 0.05}


def _write_wrists(folder: Path) -> None:
    for number in range(PEOPLE):
        write_arrays(folder / f"S{number + 2:02d}.npz", **wrist(number))


def _write_subjects(folder: Path) -> None:
    """People whose channels move with the class, each by an amount and in a unit of its own."""
    names = np.array([f"{channel}_{statistic}" for statistic in STATISTICS for channel in WORN])
    y = np.repeat(np.array([1, 2, 3], dtype=np.int8), SUBJECT_WINDOWS // 3)
    for subject in SUBJECTS:
        rng = generator(0, 0, f"subject-{subject}")
        x = rng.normal(size=(SUBJECT_WINDOWS, len(names)))
        x[:, : len(WORN)] += np.stack([np.zeros(len(WORN)), *rng.uniform(-2.0, 2.0, (2, len(WORN)))])[y - 1]
        x = x * rng.uniform(0.1, 9.0, len(names)) + 5.0
        known = {"feature_names": names, "window_s": 5.0, "hop_s": 2.5}
        write_arrays(folder / f"S{subject}.npz", X=x.astype(np.float32), y=y, **known)


def _write_pump(folder: Path) -> None:
    """Files in which the flow drops while the valve is closed, a second missing in each, and one without a fault."""
    rng, row = generator(0, 0, "pump"), np.arange(SKAB_ROWS)
    stamps = _stamps("2020-03-01T12:00:00", 1, row + (row >= SKAB_LOST))
    closed = np.zeros(SKAB_ROWS, dtype=np.int64)
    closed[VALVE_CLOSED] = 1
    for name in SKAB_FILES:
        is_free = name.startswith("anomaly-free")
        x = waves(rng, SKAB_ROWS, len(SKAB_CHANNELS), 40.0)
        x[:, -1] -= 4.0 * closed * (not is_free)
        labels = [[] if is_free else [f"{each}.0", "0.0"] for each in closed]
        header = ["datetime", *SKAB_CHANNELS, *([] if is_free else ["anomaly", "changepoint"])]
        lines = ([stamp, *cells, *label] for stamp, cells, label in zip(stamps, _texts(x), labels, strict=True))
        write_lines(folder / f"{name}.csv.gz", [header, *lines], ";")


def _write_rooms(folder: Path) -> None:
    """Rooms of which CO2 swings in hours and the rest in days, with five hours missing; one more is too short."""
    rng, lost = generator(0, 0, "rooms"), slice(ROOM_LOST_AT, ROOM_LOST_AT + ROOM_LOST)
    for index in range(ROOMS + 1):
        step = np.delete(np.arange(ROOM_ROWS + ROOM_LOST if index < ROOMS else SHORT_ROOM_ROWS), lost)
        swing, day = (np.sin(2.0 * np.pi * (step / period + index / 9.0)) for period in (48.0, 288.0))
        x = np.stack(
            [500.0 + 100.0 * swing, 40.0 + 2.0 * day, 50.0 + 40.0 * day, swing > 0.5, 22.0 + 2.0 * day], axis=1
        )
        x += np.array([5.0, 0.2, 0.5, 0.0, 0.1]) * rng.normal(size=x.shape)
        t = 1_377_299_100 + ROOM_STEP_S * step
        write_arrays(folder / f"room{413 + index}.npz", t=t, x=x.astype(np.float32), channels=ROOM_CHANNELS)


def _write_sites(folder: Path) -> None:
    """Runs in which somebody comes half-way: it gets lighter and slowly warmer."""
    rng, second = generator(0, 0, "sites"), np.arange(0, RUN_S, 4)
    for site, nodes in NODES.items():
        columns: dict[str, list[NDArray[Any]]] = {}
        for run, node in product(range(1, RUNS + 1), range(1, nodes + 1)):
            there = second >= RUN_S * (0.3 + 0.3 * generator(0, run, site).uniform())
            warm = 21.0 + np.cumsum(there) * 0.005 + 0.05 * rng.normal(size=len(second))
            light = np.where(there, 300.0, 20.0) * rng.uniform(0.8, 1.2, len(second))
            x = np.stack([warm, 40.0 + rng.normal(size=len(second)), light, light], axis=1)
            same = np.ones(len(second), dtype=np.int8)
            part = {"measurement": same * np.int16(run), "t_ms": 1_458_031_648_545 + 10_000_000 * run + 1_000 * second}
            part |= {"node": same * np.int8(node), "x": x.astype(np.float32), "occupants": there.astype(np.int8)}
            part |= dict.fromkeys(("activity", "door_open", "window_open"), 0 * same)
            for name, values in part.items():
                columns.setdefault(name, []).append(values)
        arrays = {name: np.concatenate(parts) for name, parts in columns.items()}
        write_arrays(folder / f"location_{site}.npz", channels=SITE_CHANNELS, **arrays)


def _write_office(folder: Path) -> None:
    """A room that somebody uses every other hour and a half; CO2 follows with a delay, and humidity never moves."""
    rng = generator(0, 0, "office")
    for name, (start, count) in OFFICE.items():
        there = np.arange(count) // 90 % 2
        co2 = 500.0 + 20.0 * np.convolve(there, np.exp(-np.arange(200) / 15.0))[:count] + 2.0 * rng.normal(size=count)
        columns = [21.0 + there + rng.normal(size=count) / 9.0, np.full(count, 30.0), 300.0 * there, co2]
        texts = _texts(np.column_stack([*columns, np.full(count, 0.005)]))
        stamps = _stamps(start, 60, np.arange(count))
        lines = (
            [str(k + 1), stamps[k], *texts[k], str(there[k])] for k in range(count)
        )  # the header has no name for k
        write_lines(folder / f"{name}.csv.gz", [OFFICE_COLUMNS, *lines])


def _write_air(folder: Path) -> None:
    """Units whose supply air follows the valve with a delay, and is warmer on faulty days."""
    rng = generator(0, 0, "air")
    for unit, days in AIR_DAYS.items():
        set_points, names = AIR_SET_POINTS[unit], (SUPPLY, *AIR_COMMON, *AIR_SIGNALS, *AIR_OTHERS[unit])
        header = ["Datetime", *(f"AHU: {name}" for name in (*set_points, *names)), "Occupancy Mode Indicator"]
        lines = [[*header, "Fault Detection Ground Truth", "Fault Type", "Fault Intensity"]]
        for day in days:
            kind = AIR_FAULTS.get(day, ("none", ""))
            is_faulty = day in AIR_FAULTS and day != DISPUTED_DAY
            stamps = [stamp.replace(" ", "T")[:16] for stamp in _stamps(f"{day}T00:00", 60, np.arange(1_440))]
            x = rng.uniform(size=(1_440, len(names)))
            x[:, names.index("Supply Air Fan Status")] = np.arange(1_440) // 60 % 24 > 6
            delayed = np.convolve(x[:, names.index(VALVE)], np.exp(-np.arange(60) / 10.0))[:1_440]
            x[:, 0] = 70.0 + delayed + 0.1 * rng.normal(size=1_440) + 8.0 * is_faulty
            occupied = [str(int(480 <= minute < 1_080)) for minute in range(1_440)]
            for stamp, cells, mode in zip(stamps, _texts(x, 2), occupied, strict=True):
                lines.append([stamp, *("55" for _ in set_points), *cells, mode, str(int(is_faulty)), *kind])
        if unit == "szcav":
            lines[6][lines[0].index("AHU: Mixed Air Temperature")] = ""
        write_lines(folder / f"{unit}.csv.gz", lines)


def _write_temperatures(folder: Path) -> None:
    shutil.copytree(Path(__file__).parent / "data" / "nab", folder)


WRITERS: dict[str, Callable[[Path], None]] = {
    "tabular": _write_tables,
    "streams/z24_bridge": _write_bridge,
    "streams/cwru_bearing": _write_bearing,
    "streams/stress_predict_e4": _write_wrists,
    "streams/wesad_features": _write_subjects,
    "streams/skab_pump": _write_pump,
    "streams/keti_rooms": _write_rooms,
    "streams/room_climate": _write_sites,
    "streams/uci_occupancy": _write_office,
    "streams/hvac_fdd": _write_air,
    "streams/nab": _write_temperatures,
}
