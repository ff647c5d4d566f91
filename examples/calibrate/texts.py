#!/usr/bin/env python3
"""Writes the texts that calibration reads by default into a folder: prose.txt, code.txt, documentation.txt.

usage: texts.py <folder> [--without-repository]

prose           the King James Bible of Debian's package bible-kjv, where it is installed, without verse tags; characters 200,000 to 260,000,
                which quality is measured on, and their neighbours are left out
code            modules of Python's library, without the one that quality is measured on
documentation   this repository's docs, and the topics of Python's help; without the docs where they are what is read by the calibrated cache
"""
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(sysconfig.get_paths()["stdlib"])
MEASURED = "inspect.py"
MODULES = ("argparse.py", "pathlib.py", "subprocess.py", "logging/__init__.py", "tarfile.py", "threading.py", "typing.py", "zipfile.py")


def prose():
    bible = shutil.which("bible") or "/usr/bin/bible"
    lines = subprocess.run([bible, "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    text = re.sub(r"^\S+?\d+:\d+ ", "", lines, flags=re.MULTILINE)
    return "".join(text[first:first + 60000] for first in (600000, 1800000, 3000000))


def code():
    assert MEASURED not in MODULES
    return "\n".join((LIBRARY / m).read_text(encoding="utf-8") for m in MODULES if (LIBRARY / m).is_file())


def documentation(own=True):
    pages = "\n".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "docs").glob("*.md")) + [ROOT / "README.md"]) if own else ""
    topics = LIBRARY / "pydoc_data" / "topics.py"
    if topics.is_file():
        found = {}
        exec(compile(topics.read_text(encoding="utf-8"), str(topics), "exec"), found)
        pages += "\n".join(found["topics"].values())
    return pages


def main(folder, *options):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    for name, make in (("prose", prose), ("code", code), ("documentation", lambda: documentation("--without-repository" not in options))):
        try:
            text = make()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"kvx: no {name}: {error}", file=sys.stderr)
            continue
        (folder / f"{name}.txt").write_text(text, encoding="utf-8", newline="\n")
        written += 1
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
