#!/usr/bin/env python3
"""What each kernel takes of a multiprocessor, as the assembler tells: registers, shared memory, stack and spills. A spill fails.

usage: kernel_resources.py <root of the repository> <jobs> <file.cu>... -- <nvcc and its options, without -c and -o>

One line for each kernel and architecture. Kernels of the same name, instantiated by several files, are listed once.
"""

import concurrent.futures
import re
import shutil
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def kernels(text):
    """(mangled name, architecture) -> [registers, static shared bytes, stack bytes, spilled bytes]"""
    found, now = {}, None
    for line in text.splitlines():
        if m := ENTRY.search(line):
            now = found.setdefault(m.groups(), [0, 0, 0, 0])
        elif "Function properties for" in line and now is not None and line.split()[-1] not in [k[0] for k in found]:
            now = None  # a function that is no kernel
        elif now is None:
            continue
        elif m := STACK.search(line):
            now[2], now[3] = int(m.group(1)), int(m.group(2)) + int(m.group(3))
        elif m := USED.search(line):
            now[0] = int(m.group(1))
            shared = SHARED.search(line)
            now[1] = int(shared.group(1)) if shared else 0
    return found


def demangle(names):
    tool = shutil.which("cu++filt") or shutil.which("c++filt")
    if not tool or not names:
        return list(names)
    text = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return text.splitlines()


def short(name):
    """Without namespaces and arguments of the function."""
    depth = 0
    for i, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and not name.startswith("(anonymous", i) and i > 0:
            name = name[:i]
            break
    return re.sub(r"kvx::|\(anonymous namespace\)::|^void ", "", name)


def compile_one(root, command, source):
    run = subprocess.run([*command, "-Xptxas", "-v", "-c", "-o", "/dev/null", source], capture_output=True, text=True, cwd=root)
    return run.returncode, run.stdout + run.stderr


def main(root, jobs, sources, command):
    found = {}
    with concurrent.futures.ThreadPoolExecutor(max_workers=int(jobs)) as pool:
        for source, (code, text) in zip(sources, pool.map(lambda s: compile_one(root, command, s), sources)):
            if code != 0:
                print(text)
                print(f"{source}: does not compile")
                return 1
            found.update(kernels(text))
    keys = sorted(found)
    rows = sorted((short(name), arch, *found[key]) for name, key, arch in zip(demangle([k[0] for k in keys]), keys, [k[1] for k in keys]))
    spilled = 0
    for name, arch, registers, shared, stack, spill in rows:
        spilled += spill > 0
        print(f"{arch:<6} {registers:3} registers {shared:6} B shared {stack:4} B stack {spill:4} B spilled  {name}")
    print(f"{len(rows)} kernels, {spilled} spill")
    return 1 if spilled or not rows else 0


if __name__ == "__main__":
    split = sys.argv.index("--")
    sys.exit(main(*sys.argv[1:3], sys.argv[3:split], sys.argv[split + 1:]))
