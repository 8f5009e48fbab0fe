"""Acceptance 1 (its figures) and 14 of the laboratory: what the published study drew, and a page without network.

Writes the synthetic study that has the published one's numbers, reports on it with the commands a user types, and
checks that its figures are drawn as PNG, SVG and CSV, that they say what was planted, that the page can be asked for
the published ones among its choices, and that a browser without network draws it, which has less than 5 MB.

    PYTHONPATH=lab/tests python lab/tests/acceptance/report.py --keep FOLDER
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
from synthetic.study import write

NO_LOG, NO_LINES = "cfg_no_init_logging", "src_submit_biglogs_remove"
CHROMIUM = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)


def command(*words: str) -> str:
    """The output of a `broadleaf-lab` command."""
    code = "from broadleaf_lab.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode != 0:
        sys.exit(f"lab {' '.join(words)} failed: {done.stderr}")
    return done.stdout


def findings(figures: Path) -> dict[str, tuple[bool, str]]:
    """What the tables behind the figures say about the planted effects, and whether it is right."""
    best = pd.read_csv(figures / "05_waterfall.csv")
    strip = pd.read_csv(figures / "04_colour_strip.csv")
    flip = strip[strip["treatment"] == "affinity"]
    tiles = pd.read_csv(figures / "07_pair_tiles.csv")
    first, last = float(best["before_us"].iloc[0]), float(best["after_us"].iloc[-1])
    top = tiles.loc[tiles["estimate"].idxmax()]
    slow = flip["before_us"] >= flip["before_us"].median()
    ratio = flip["after_us"] / flip["before_us"]
    colour = pd.read_csv(figures / "03_before_after.csv")
    change = (colour["after_us"] / colour["before_us"]).groupby(colour[NO_LINES]).median()
    return {
        "baseline near 1182 us": (abs(first / 1182 - 1) < 0.03, f"{first:.0f} us"),
        "end near 61 us": (abs(last / 61 - 1) < 0.08, f"{last:.1f} us"),
        "turning the log off is the best first step": (
            best["name"].iloc[0] == NO_LOG,
            f"{best['name'].iloc[0]} {best['delta_us'].iloc[0]:.0f} us",
        ),
        "the two logging treatments overlap most": (
            {top["a"], top["b"]} == {NO_LOG, NO_LINES},
            f"{top['estimate']:+.0f} us",
        ),
        "second adds little once the first is on": (
            change[0] < 0.6 < change[1],
            f"x{change[0]:.2f} alone, x{change[1]:.2f} after",
        ),
        "affinity helps slow, hinders fast": (
            ratio[slow].median() < 1 < ratio[~slow].median(),
            f"x{ratio[slow].median():.2f} slow, x{ratio[~slow].median():.2f} fast",
        ),
    }


def browser(page: Path, folder: Path) -> tuple[bool, str]:
    """Whether a browser without network draws every chart, and how many it draws."""
    if CHROMIUM is None:
        return False, "no Chromium here (Debian: apt-get install chromium)"
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}",
        "--window-size=1280,20000", "--virtual-time-budget=60000",
    ]  # fmt: skip
    dom = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    shot = folder / "report.png"
    subprocess.run([*command, f"--screenshot={shot}", page.as_uri()], capture_output=True, timeout=120, check=True)
    drawn = len(re.findall(r'<svg [^>]*class="marks"', dom))
    wanted = 6
    done = 'data-ready="yes"' in dom and 'class="error"' not in dom and drawn == wanted
    return done, f"{drawn} of {wanted} charts; screenshot {shot}"


def main() -> int:
    """Runs everything; returns 0 if every check holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="where to leave the study and its report")
    parser.add_argument("--paths", type=int, default=80, help="random orders of the study")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)) / "seedlike"
        write(folder, "seedlike", design={"paths": options.paths}, noise=0.05)
        print(command("report", str(folder)))
        figures, page = folder / "report" / "figures", folder / "report" / "report.html"
        checks = findings(figures)
        # No factor of this study has more than two levels.
        numbers = {n: sorted(p.suffix for p in figures.glob(f"{n:02d}_*")) for n in range(1, 15) if n != 11}
        complete = [n for n, kinds in numbers.items() if kinds == [".csv", ".png", ".svg"]]
        checks["figures as PNG, SVG and CSV"] = (len(complete) == 13, f"{len(complete)} of 13")
        text = page.read_text(encoding="utf-8")
        asked = re.findall(r'"question":"([^"]*)"', text)
        checks["what else the published study drew"] = (len(asked) == 8, f"{len(asked)} of 8 questions")
        said = re.findall(r"The placebo [^<]*covers zero", text)
        checks["placebo covers zero"] = (len(said) == 1, (said or ["no"])[0])
        checks["page smaller than 5 MB"] = (page.stat().st_size < 5_000_000, f"{page.stat().st_size / 1e6:.2f} MB")
        checks["drawn without network"] = browser(page, folder)
    for name, (holds, figure) in checks.items():
        print(f"{'ok ' if holds else 'BAD'} {name}: {figure}")
    return 0 if all(holds for holds, _ in checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
