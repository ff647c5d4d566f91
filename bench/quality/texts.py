#!/usr/bin/env python3
"""Writes the texts that quality is measured on, prose.txt, text2.txt and documentation.txt, into a folder.

usage: texts.py <folder>

prose   the King James Bible of Debian's package bible-kjv, without the verse tag that leads each line, characters 200,000 to 260,000
text2   a module of Python's library as Debian 12 ships it
documentation   perldiag, Perl's list of messages, as Debian 12 ships it
"""
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys

MODULE = pathlib.Path("/usr/lib/python3.11/inspect.py")  # libpython3.11-minimal
PAGE = pathlib.Path("/usr/share/perl/5.36/pod/perldiag.pod")  # perl-modules-5.36
SUMS = {
    "prose": "603ca643ed5e3c9798698c060a1400b1f05dc8b137e6d59dbe945bf5ce6ec612",
    "text2": "75147eb66270082c23edf22ddcfa953c00cea398867b91cd8a4b167b1cf30ede",
    "documentation": "cd743a8a307e5490537bce8b83cbdcee746a5a8ae8e64e975dd2218d0b492414",
}


def prose():
    bible = shutil.which("bible") or "/usr/bin/bible"
    lines = subprocess.run([bible, "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    return re.sub(r"^\S+?\d+:\d+ ", "", lines, flags=re.MULTILINE)[200000:260000]


def text2():
    return MODULE.read_text(encoding="utf-8")


def documentation():
    return PAGE.read_text(encoding="utf-8")


def main(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    missing = 0
    makers = (("prose", prose, "the package bible-kjv"), ("text2", text2, f"{MODULE} (libpython3.11-minimal)"),
              ("documentation", documentation, f"{PAGE} (perl-modules-5.36)"))
    for name, make, source in makers:
        try:
            text = make()
        except (OSError, subprocess.CalledProcessError):
            print(f"kvx: {name} is left out: it needs {source}", file=sys.stderr)
            missing += 1
            continue
        found = hashlib.sha256(text.encode("utf-8")).hexdigest()
        if found != SUMS[name]:
            print(f"kvx: {name} is not the text of docs/results.md: its SHA-256 is {found}; numbers will differ", file=sys.stderr)
        (folder / f"{name}.txt").write_text(text, encoding="utf-8", newline="\n")
    return 1 if missing == len(makers) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
