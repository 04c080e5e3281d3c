"""Goal: what a demo says of an alarm is on the demo's own time line, or has no time; its help says what it takes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedgate.config.protocol.messages import Alarm
from fedgate.config.protocol.topics import ALL
from fedgate.firmware_sim import children
from fedgate.firmware_sim.demo import demo
from fedgate.firmware_sim.demo.scenarios import STORIES
from fedgate.firmware_sim.demo.stage import DemoError, Watch, make_folder, quick_settings
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.time_units import NS
from tests.support.waiting import PATIENCE_S

STORY = STORIES["footbridge"]()


@pytest.mark.parametrize(
    ("gateway", "onset_s", "t_s", "words"),
    [
        ("gateway-1", 0.0, 30.0, " at 30 s: "),
        (ALL, 30.0, 95_304_247.0, " at 30 s: "),
        (ALL, 95_304_247.0, 95_304_247.0, "(major): "),
        ("gateway-1", 0.0, -5.0, "(major): "),
    ],
)
def test_an_alarm_is_told_with_a_time_of_the_replay_or_with_none(
    gateway: str, onset_s: float, t_s: float, words: str
) -> None:
    onset_ns, t_ns = (STORY.t0_ns + round(at_s * NS) for at_s in (onset_s, t_s))
    said: list[str] = []
    kinds = {"cause": "anomaly", "kind": "anomaly", "state": "raised", "severity": "major", "text": "what it is"}
    alarm = Alarm.model_validate({**kinds, "id": "a", "onset_ns": onset_ns, "t_ns": t_ns})
    Watch(STORY)._alarm(gateway, alarm, said.append)
    assert len(said) == 1 and f"{words}what it is" in said[0]


@pytest.mark.soak
def test_the_folder_of_a_try_that_failed_serves_the_next_one_and_no_other_folder_does(tmp_path: Path) -> None:
    story = replace(STORY, settings={"nu": "a half"})
    setup = demo.Setup(tmp_path / "out", "embedded", 1.0)
    for _ in range(2):  # the second is not told of the first one's folder
        performance = demo.perform(story, ["one"], setup, "fedavg", lambda text: None)
        with pytest.raises(DemoError, match=r"^--set: "), performance:
            pass
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    with pytest.raises(DemoError, match="not the folder of an earlier demo"):
        make_folder(tmp_path / "mine")
    assert (tmp_path / "mine" / "notes").exists()


def test_an_algorithm_that_learns_from_labels_is_refused() -> None:
    with pytest.raises(DemoError, match="--algorithm: robust-svm-admm learns from labels"):
        quick_settings("robust-svm-admm", 3, {}, {})


@pytest.mark.soak
def test_the_help_lists_the_algorithms_that_need_no_labels_and_loads_no_library_of_theirs() -> None:
    program = (
        "import sys; from fedgate.firmware_sim.__main__ import main\n"
        "try: main(['demo', '--help'])\n"
        "finally: assert not {'onnx', 'scipy', 'sklearn', 'torch'} & sys.modules.keys()\n"
    )
    done = children.run([sys.executable, "-c", program], PATIENCE_S, text=True)
    assert done.returncode == 0, done.stderr
    listed = "".join(done.stdout.split()).partition("needsnolabels:")[2].partition("(default")[0]
    assert listed.split(",") == [name for name in sorted(ALGORITHMS) if not build(name, 2, {}).labels]
