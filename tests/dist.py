"""Builds the wheel and the source distribution, checks them, and runs the demo from an environment of their own.

`make dist` runs it; the files are in `dist/`. It is no test. The wheel is built from the source distribution, so that
this is whole too. Then the wheel is installed into an empty environment in a temporary folder. There the demo's script
runs, outside the checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
OUTPUT = CHECKOUT / "dist"
CONSTRAINTS = CHECKOUT / "constraints.txt"
SCRIPT = CHECKOUT / "examples" / "train_digits.py"

BESIDE = {"LICENSE", "README.md", "CHANGELOG.md", "MANIFEST.in", "pyproject.toml", "setup.cfg", "PKG-INFO"}
"""What a source distribution has beside the package."""

WHERE = (
    "import gtrace, sys; sys.exit(f'it is {gtrace.__file__}' * (not gtrace.__file__.startswith(sys.argv[1])) or None)"
)
"""Fails unless the gtrace that is imported lies in the folder that is given."""


def package() -> set[str]:
    """Return the files of the package that users need: all but pages about the code, and caches."""
    files = (path for path in (CHECKOUT / "gtrace").rglob("*") if path.is_file())
    return {
        path.relative_to(CHECKOUT).as_posix()
        for path in files
        if path.suffix != ".md" and "__pycache__" not in path.parts
    }


def differences(found: Iterable[str], expected: set[str], what: str) -> list[str]:
    """Return what a distribution lacks, and what it should not have, as sentences."""
    found = set(found)
    lacking = [f"{what} lacks {name}" for name in sorted(expected - found)]
    return lacking + [f"{what} should not have {name}" for name in sorted(found - expected)]


def check_wheel(path: Path) -> list[str]:
    """Return what is wrong with the content of a wheel."""
    names = zipfile.ZipFile(path).namelist()
    about = {name.partition("/")[2] for name in names if ".dist-info/" in name}
    wanted = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}
    return differences((n for n in names if ".dist-info/" not in n), package(), path.name) + differences(
        about, wanted, f"the .dist-info of {path.name}"
    )


def check_source(path: Path) -> list[str]:
    """Return what is wrong with the content of a source distribution."""
    with tarfile.open(path) as archive:
        names = [member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()]
    return differences((n for n in names if "gtrace.egg-info/" not in n), package() | BESIDE, path.name)


def run(*command: str | Path, **options: object) -> None:
    """Run a command; its failure ends this program."""
    print("$", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, **options)  # type: ignore[call-overload]


def install(wheel: Path, place: Path) -> Path:
    """Install a wheel into a new environment; returns the folder of its programs."""
    venv.create(place, with_pip=True)
    programs = place / ("Scripts" if os.name == "nt" else "bin")
    run(programs / "python", "-m", "pip", "install", "--disable-pip-version-check", "-q", "-c", CONSTRAINTS,
        f"{wheel}[examples]", cwd=place)  # fmt: skip
    return programs


def main() -> int:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    # in the environment that the build makes for itself, too; as an address, since a list of paths is split at spaces
    environment = {**os.environ, "PIP_CONSTRAINT": CONSTRAINTS.as_uri()}
    run(sys.executable, "-m", "build", "--outdir", OUTPUT, CHECKOUT, env=environment, cwd=tempfile.gettempdir())
    (wheel,), (source,) = OUTPUT.glob("*.whl"), OUTPUT.glob("*.tar.gz")
    wrong = check_wheel(wheel) + check_source(source)
    print(*wrong, sep="\n", end="\n" * bool(wrong))
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, source)
    if wrong:
        return 1
    with tempfile.TemporaryDirectory(prefix="gtrace-dist-") as folder:
        place = Path(folder, "environment")
        programs = install(wheel, place)
        shutil.copy(SCRIPT, folder)
        clean = {name: text for name, text in os.environ.items() if name != "PYTHONPATH" and not name.startswith("GT_")}
        clean["GT_CACHE_DIR"] = str(Path(folder, "programs"))
        run(programs / "python", "-c", WHERE, place, env=clean, cwd=folder)
        run(programs / "gtrace", "run", SCRIPT.name, "--epochs", "20", env=clean, cwd=folder)
        run(programs / "gtrace", "cache", "list", env=clean, cwd=folder)
    print(f"{wheel.name} and {source.name} are in {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
