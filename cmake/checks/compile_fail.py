#!/usr/bin/env python3
"""Compiles sources that must be refused, and reads what the compiler says.

usage: compile_fail.py <folder of sources> <compiler and flags ...>

The first line of a source is `// refused: <regular expression>`; one of the compiler's error lines must match it. A source whose first
line is `// accepted` must compile: it shows that its neighbours fail for the reason that they name.
"""
import pathlib
import re
import subprocess
import sys


def verdict(source, command):
    first = source.read_text().splitlines()[0]
    result = subprocess.run([*command, str(source)], capture_output=True, text=True)
    if first == "// accepted":
        return None if result.returncode == 0 else "must compile and does not:\n" + result.stderr[:4000]
    expected = re.fullmatch(r"// refused: (.+)", first)
    if not expected:
        return "its first line is neither `// accepted` nor `// refused: <regular expression>`"
    if result.returncode == 0:
        return "must be refused and compiles"
    errors = [line for line in result.stderr.splitlines() if "error:" in line]
    if not any(re.search(expected.group(1), line) for line in errors):
        return f"is refused, but no error says /{expected.group(1)}/:\n" + result.stderr[:4000]
    return None


def main(folder, command):
    sources = sorted(pathlib.Path(folder).glob("*.cpp"))
    verdicts = [(source, verdict(source, command)) for source in sources]
    for source, what in verdicts:
        print(f"{source.name}: {what or 'as expected'}")
    return 1 if not sources or any(what for _, what in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
