"""`firmware-sim stories`: eight alarms as an operator meets them, and in another folder what caused them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedgate.config.runtime import cli, files
from fedgate.firmware_sim.progress import Progress

if TYPE_CHECKING:
    from fedgate.firmware_sim.backtest.stories import Story

DESCRIPTION = (
    "Write eight alarms of gateways on two bridges: two of damage, two of a sensor's fault, two of works and two of "
    "weather, in an order, with channels and magnitudes that the seed draws. Each is shown as 'cloud-aggregator alarms "
    "show' prints it when it is raised, and as a picture. The causes are put into shipped recordings; see 'How to read "
    "an alarm' in the reference on alarms. What happened is written to another folder. It takes some minutes, and says "
    "meanwhile which story it is at."
)
MODE = 0o644
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>story {number}</title>
<style>
  body {{ font: 16px/1.5 system-ui, sans-serif; color: #22272b; margin: 1.5rem auto; max-width: 80rem; }}
  img {{ width: 100%; }}
  .wide {{ overflow-x: auto; }}
  table {{ border-collapse: collapse; font-size: .85rem; }}
  th, td {{ padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #e6eaed; }}
  td:first-child, th:first-child {{ text-align: left; }}
  pre {{ background: #f6f7f8; padding: .8rem; overflow-x: auto; font-size: .8rem; line-height: 1.25; }}
</style>
<h1>Story {number}</h1>
{shown}
<h2>As a command shows it</h2>
<pre>{text}</pre>
</html>
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    command.description = DESCRIPTION
    command.add_argument("--output", type=Path, default=Path("out/stories"), metavar="DIR", help="default: out/stories")
    text = "where answers.json goes (default: beside --output, its name with -answers)"
    command.add_argument("--answers", type=Path, metavar="DIR", help=text)
    command.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    command.add_argument("--json", action="store_true", help="print the files as JSON")
    command.set_defaults(act=main)


def main(arguments: argparse.Namespace) -> None:
    """Write the stories of a seed; raises `ValueError` where answers would stand beside them."""
    output: Path = arguments.output
    answers: Path = arguments.answers or output.with_name(f"{output.name}-answers")
    if answers.resolve() == output.resolve():
        raise ValueError(f"--answers: {answers} is the folder of the stories; expected another one")
    if arguments.seed < 0:
        raise ValueError(f"--seed: expected 0 or more, got {arguments.seed}")
    from fedgate.firmware_sim.backtest.stories import make_stories  # what it loads takes extras, which --help must not

    progress = Progress(sys.stderr)
    try:
        stories = make_stories(arguments.seed, say=progress)
    except LookupError as error:
        raise cli.NotDoneError(f"stories: {error}") from None
    finally:
        progress.close()
    for folder in (output, answers):
        folder.mkdir(parents=True, exist_ok=True)
    written = [str(path) for story in stories for path in _write(story, output)]
    answers_by_story = {f"story-{story.number}": _describe_answer(story) for story in stories}
    text = json.dumps({"seed": arguments.seed, "stories": answers_by_story}, indent=2)
    files.write(answers / "answers.json", f"{text}\n".encode(), MODE)
    written.append(str(answers / "answers.json"))
    cli.show(arguments, {"files": written}, "\n".join(written))


def _write(story: Story, folder: Path) -> list[Path]:
    from html import escape

    from fedgate.firmware_sim.backtest.stories import render_story
    from fedgate.firmware_sim.demo.evidence_page import show_evidence
    from fedgate.firmware_sim.demo.evidence_picture import draw_evidence

    text, evidence = render_story(story), story.shown
    page = PAGE.format(number=story.number, shown=show_evidence([(story.gateway, evidence)]), text=escape(text))
    contents = {"txt": text.encode(), "png": draw_evidence(evidence), "html": page.encode()}
    paths = [folder / f"story-{story.number}.{ending}" for ending in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        files.write(path, content, MODE)
    return paths


def _describe_answer(story: Story) -> dict[str, object]:
    from fedgate.config.evidence.likely_cause import find_likely_cause
    from fedgate.firmware_sim.backtest.stories import guess_cause

    return {
        "kind": story.kind,
        "what": story.what,
        "channels": list(story.disturbed),
        "onset": cli.format_time(story.onset_ns),
        "rules": find_likely_cause(story.shown).kind,
        "trivial": guess_cause(story.shown),
    }
