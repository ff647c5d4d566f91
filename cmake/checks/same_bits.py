#!/usr/bin/env python3
"""Builds one program with several compilers and flags, runs each under every instruction set, and demands the same output to the letter.

usage: same_bits.py <source> <include folder> <instruction set,...> <build>...
  build   a compiler and its flags in one argument, such as "g++ -O3 -march=native"
"""
import concurrent.futures
import difflib
import os
import pathlib
import subprocess
import sys
import tempfile


def main(source, include, sets, builds):
    with tempfile.TemporaryDirectory() as folder:

        def build(number):
            program = pathlib.Path(folder, f"bits{number}")
            command = [*builds[number].split(), "-std=c++20", f"-I{include}", source, "-o", str(program), "-pthread"]
            result = subprocess.run(command, capture_output=True, text=True)
            return program if result.returncode == 0 else print(f"{' '.join(command)}\n{result.stderr[:4000]}")

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            programs = list(pool.map(build, range(len(builds))))
        if None in programs:
            return 1
        outputs = []
        for text, program in zip(builds, programs):
            for level in sets.split(","):
                result = subprocess.run([program], capture_output=True, text=True, env={**os.environ, "KVX_SIMD": level})
                if result.returncode:
                    print(f"{text}, {level}: exit {result.returncode}\n{result.stderr[:4000]}")
                    return 1
                outputs.append((f"{text}, {level}", result.stdout))
    first_name, first = outputs[0]
    bad = 0
    for name, output in outputs[1:]:
        difference = list(difflib.unified_diff(first.splitlines(), output.splitlines(), first_name, name, lineterm="", n=0))
        bad += bool(difference)
        print("\n".join(difference[:40]) if difference else f"{name}: the same bits")
    print(f"{len(outputs)} runs, {len(first.splitlines())} lines each, {bad} differ from: {first_name}")
    return 1 if bad or not first.strip() or len(outputs) < 2 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4], sys.argv[4:]))
