#!/usr/bin/env python3
"""Shows of every header of the library that it compiles alone, included twice, with warnings as errors.

A header that is the first include of another one is seen there: nothing stands before it. Only the others are compiled.

usage: compile_alone.py <root of the repository> <jobs> <suffix> <compiler and flags ...>
  suffix   .hpp or .cuh; the flags end with what compiles one source without a result, such as -fsyntax-only
"""
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile


def main(root, jobs, suffix, command):
    root = pathlib.Path(root).resolve()
    include = root / "include"
    # A file without #pragma once is a text that another header includes several times; it cannot stand alone.
    texts = {h: h.read_text() for h in sorted(include.rglob("*" + suffix))}
    texts = {h: text for h, text in texts.items() if text.startswith("#pragma once")}
    first_include = re.compile(r"#pragma once\n(?:[^#\n].*\n|\n)*#include <(.*)>")
    seen = {include / first[1] for text in texts.values() if (first := first_include.match(text))}
    headers = [h for h in texts if h not in seen]
    with tempfile.TemporaryDirectory() as folder:

        def compile_one(number, header):
            source = pathlib.Path(folder, f"{number}{'.cu' if suffix == '.cuh' else '.cpp'}")
            line = f"#include <{header.relative_to(include).as_posix()}>\n"
            source.write_text(line + line)
            return subprocess.run([*command, f"-I{include}", str(source)], capture_output=True, text=True, cwd=folder)

        with concurrent.futures.ThreadPoolExecutor(int(jobs)) as pool:
            results = list(pool.map(compile_one, range(len(headers)), headers))
    bad = 0
    for header, result in zip(headers, results):
        if result.returncode or result.stderr.strip():
            bad += 1
            print(f"{header.relative_to(root)} does not compile alone:\n{result.stderr[:4000]}")
    print(f"{len(headers) - bad} of {len(headers)} compile, in which {len(texts)} headers are seen alone: {' '.join(command)}")
    return 1 if bad or not headers else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4], sys.argv[4:]))
