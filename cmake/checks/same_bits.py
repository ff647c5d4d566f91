#!/usr/bin/env python3
"""Builds programs with several compilers and flags, runs each under every instruction set, and demands the same output to the letter.

usage: same_bits.py <include folder> <instruction set,...> <source>... -- <build>...
  build   a compiler and its flags in one argument, such as "g++ -O3 -march=native"

The sources are one unit of a compiler, each in a namespace of its own, which takes half the time of one after the other: what they include
comes first, and `main` of each ends with a `return`.
"""
import difflib
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def unit(sources):
    texts = {path.stem: path.read_text() for path in sources}
    headers = dict.fromkeys(line for text in texts.values() for line in re.findall(r"^#include .*$", text, re.M))
    bodies = [f'namespace unit_{path.stem} {{\n#include "{path}"\n}}' for path in sources]
    calls = [f'  if (name == "{stem}") return unit_{stem}::main();' for stem in texts]
    return "\n".join([*headers, "#include <string_view>", *bodies, "int main(int, char** arguments) {",
                      "  const std::string_view name = arguments[1];", *calls, "  return 1;", "}", ""])


def main(include, sets, sources, builds):
    sources = [pathlib.Path(s).resolve() for s in sources]
    runs = bad = 0
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder, "bits.cpp")
        text.write_text(unit(sources))
        programs = [pathlib.Path(folder, f"bits{number}") for number in range(len(builds))]
        for build, program in zip(builds, programs):
            command = [*build.split(), "-std=c++20", f"-I{include}", str(text), "-o", str(program), "-pthread"]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode:
                print(f"{' '.join(command)}\n{result.stderr[:4000]}")
                return 1
        for stem in [source.stem for source in sources]:
            outputs = []
            for build, program in zip(builds, programs):
                for level in sets.split(","):
                    result = subprocess.run([program, stem], capture_output=True, text=True, env={**os.environ, "KVX_SIMD": level})
                    if result.returncode:
                        print(f"{stem}, {build}, {level}: exit {result.returncode}\n{result.stderr[:4000]}")
                        return 1
                    outputs.append((f"{stem}, {build}, {level}", result.stdout))
            first_name, first = outputs[0]
            for name, output in outputs[1:]:
                difference = list(difflib.unified_diff(first.splitlines(), output.splitlines(), first_name, name, lineterm="", n=0))
                bad += bool(difference)
                print("\n".join(difference[:40]) if difference else f"{name}: the same bits")
            runs += len(outputs)
            print(f"{stem}: {len(outputs)} runs, {len(first.splitlines())} lines each")
            bad += not first.strip() or len(outputs) < 2
    print(f"{runs} runs, {bad} differ from the first of their source")
    return 1 if bad or not runs else 0


if __name__ == "__main__":
    split = sys.argv.index("--")
    sys.exit(main(*sys.argv[1:3], sys.argv[3:split], sys.argv[split + 1:]))
