#!/usr/bin/env python3
"""Fails on text that must not be in the repository: unfinished ends, machine paths, overlong files, stray macros, missing header comments.

usage: text_rules.py <root of the repository>
"""
import os
import pathlib
import re
import sys

CODE = {".hpp", ".cpp", ".cuh", ".cu"}
TEXT = CODE | {".md", ".txt", ".cmake", ".in", ".sh", ".py", ".json", ""}
SKIPPED_FOLDERS = {"build", "out", "install", "data", "__pycache__"}
MOST_LINES = 400
MOST_COLUMNS = 140

# Written in two halves, so that this file does not find itself.
FORBIDDEN = re.compile("|".join([
    r"\bTO" r"DO\b", r"\bFIX" r"ME\b", r"\bX" r"XX\b", r"\bnot imple" r"mented\b", r"\bplace" r"holder\b",
    r"(?<![\w.$}])/(?:ho" r"me|ro" r"ot|Us" r"ers|t" r"mp)/", r"-ffast-" r"math",
]), re.IGNORECASE)
FORBIDDEN_NAMES = {"detail", "details", "utils", "util", "common", "misc", "helpers"}


def files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS and (not f.startswith(".") or f == ".ci"))
        for name in sorted(names):
            path = pathlib.Path(folder, name)
            if path.suffix in TEXT and not path.is_symlink() and name not in ("LICENSE", "CMakeUserPresets.json"):
                yield path, path.relative_to(root)


def complaints(path, name):
    if FORBIDDEN_NAMES & {*name.parts[:-1], name.stem}:
        yield 0, "a name that says nothing: call it what it holds"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        if name.suffix:
            yield 0, "no UTF-8"
        return
    for number, line in enumerate(lines, 1):
        found = FORBIDDEN.search(line)
        if found:
            yield number, f"'{found.group(0)}' has no place here"
        if name.suffix in CODE and len(line) > MOST_COLUMNS:
            yield number, f"{len(line)} columns, the most is {MOST_COLUMNS}"
        if line != line.rstrip():
            yield number, "white space at the end"
    if name.suffix not in CODE:
        return
    if len(lines) > MOST_LINES:
        yield 0, f"{len(lines)} lines, the most is {MOST_LINES}"
    if name.parts[0] == "include":
        if lines[:1] == ["#pragma once"]:
            lines_of_comment = lines[1:2]
        else:
            lines_of_comment = lines[:1]
            if name.parts[2:4] != ("backend", "simd"):
                yield 1, "a header starts with #pragma once"
        if not (lines_of_comment and lines_of_comment[0].startswith("// ")):
            yield 2, "a header says in one sentence, at its top, what it holds"
        undefined = {m.group(1) for m in (re.match(r"\s*#\s*undef\s+(\w+)", line) for line in lines) if m}
        for number, line in enumerate(lines, 1):
            defined = re.match(r"\s*#\s*define\s+(\w+)", line)
            if defined and defined.group(1) != "KVX_HD" and defined.group(1) not in undefined:
                yield number, f"macro {defined.group(1)} would reach the user"
    elif not path.with_suffix(".hpp").exists() and not (lines and lines[0].startswith("//") or lines[:1] == ["#pragma once"] and lines[1:2] and lines[1].startswith("//")):
        yield 1, "a source says in one sentence, at its top, what it is"


def main(root):
    seen, bad = 0, []
    for path, name in files(root):
        seen += 1
        bad += [f"{name}:{number}: {what}" for number, what in complaints(path, name)]
    print("\n".join(bad) if bad else f"{seen} files follow the rules of the text")
    return 1 if bad or not seen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
