#!/usr/bin/env python3
"""Puts one defect into a copy of the headers, builds the test that must see it for the simulator, and demands that the test fails.

usage: mutants.py <build folder> [--only N] [--kernel NAME] [--jobs N] [--applies] [--cxx COMPILER]
  --only N       the N-th of the list
  --kernel NAME  those of one kernel
  --applies      no compiler: only whether the text of each defect is still in the headers, once
Defects are listed in mutants.txt. A test has failed when it does under one of four orders of threads, or with streams that run late.
"""
import argparse
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ORDERS = [{"SIMT_SEED": "0"}, {"SIMT_SEED": "1"}, {"SIMT_SEED": "2"}, {"SIMT_SEED": "3"}, {"SIMT_LAZY": "1"}]
WARNINGS = ["-Wno-unknown-pragmas", "-w"]  # defects leave variables unused


def defects():
    for line in (HERE / "mutants.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            fields = line.split("\t")
            assert len(fields) == 6, f"six fields, tabs between: {line}"
            kernel, test, sanitizers, file, old, new = ("" if f == "(nothing)" else f.replace("\\n", "\n") for f in fields)
            yield {"kernel": kernel, "test": test, "sanitizers": sanitizers, "file": file, "old": old, "new": new}


def applied(defect):
    """The text of the header with the defect, or None where it does not hold the old text exactly once."""
    path = ROOT / "include" / "kvx" / defect["file"]
    text = path.read_text() if path.exists() else ""
    return text.replace(defect["old"], defect["new"]) if text.count(defect["old"]) == 1 else None


class builder:
    def __init__(self, folder, cxx):
        self.folder = folder
        self.cxx = cxx
        cuda = next((p for p in [pathlib.Path(os.environ.get("KVX_CUDA_HEADERS", "/nowhere")), pathlib.Path("/usr/local/cuda/include"),
                                 *ROOT.glob("build/packages/cuda/nvidia/cu13/include")] if (p / "cuda_runtime.h").exists()), None)
        assert cuda, "a folder with CUDA's headers is needed: KVX_CUDA_HEADERS names it"
        packages = sorted(ROOT.glob("build/packages/**/doctest/doctest.h"))
        system = [cuda, *([packages[0].parent.parent] if packages else [])]
        self.includes = [f"-I{ROOT / 'tests'}", f"-I{HERE}", *(f"-isystem{p}" for p in system)]

    def run(self, command, **more):
        return subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)

    def compile(self, source, target, *options, headers=None):
        command = [self.cxx, "-std=c++20", f"-I{headers or ROOT / 'include'}", *self.includes, *options, "-c", source, "-o", target]
        return self.run(command)

    def parts(self, sanitizers):
        """The engine, the stand-in for CUDA's runtime, doctest's main and the host's kernels, without defects."""
        flags = [] if sanitizers == "none" else [f"-fsanitize={sanitizers}"]
        objects = []
        for source, options in [*((HERE / f"{n}.cpp", ["-O2"]) for n in ("collectives", "engine", "fiber")),
                                (HERE / "fake_cudart.cpp", ["-O1", *flags]), (ROOT / "tests" / "main.cpp", ["-O1", *flags]),
                                (ROOT / "tests" / "support" / "compiled_kernels.cpp", ["-O1"])]:
            target = self.folder / f"{sanitizers.replace(',', '_')}_{source.stem}.o"
            if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
                built = self.compile(source, target, *options)
                if built.returncode:
                    raise SystemExit(built.stderr)
            objects.append(target)
        return objects

    def program(self, number, defect, text):
        """The test's program, or the compiler's complaint."""
        folder = self.folder / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ROOT / "include", folder / "include")
        (folder / "include" / "kvx" / defect["file"]).write_text(text)
        flags = [] if defect["sanitizers"] == "none" else [f"-fsanitize={defect['sanitizers']}"]
        built = self.compile(ROOT / "tests" / "device" / f"{defect['test']}.cu", folder / "test.o", "-xc++", "-O1", "-g1",
                             "-fno-strict-aliasing", *WARNINGS, *flags, "-include", HERE / "simt.hpp",
                             "-include", ROOT / "tests" / "support" / "compiled_kernels.hpp", headers=folder / "include")
        if built.returncode == 0:
            built = self.run([self.cxx, *flags, folder / "test.o", *self.parts(defect["sanitizers"]), "-o", folder / "test", "-lpthread"])
        return (folder / "test", "") if built.returncode == 0 else (None, built.stderr)


def red(program):
    """Under which order the program fails, and how."""
    for order in ORDERS:
        environment = {**os.environ, **order, "UBSAN_OPTIONS": "halt_on_error=1", "KVX_TEST_OPERATIONS": "300"}
        name = " ".join(f"{k}={v}" for k, v in order.items())
        try:
            run = subprocess.run([str(program)], capture_output=True, text=True, errors="replace", env=environment, timeout=300)
        except subprocess.TimeoutExpired:
            return name, "no end"
        if run.returncode != 0:
            text = run.stdout + run.stderr
            how = next((w for w in ("heap-buffer-overflow", "global-buffer-overflow", "use-after-poison", "data race", "runtime error", "simt:", "is NOT correct",
                                    "FAILED") if w in text), f"exit {run.returncode}")
            return name, how.replace("is NOT correct", "a check").replace("simt:", "the simulator")
    return None, ""


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--only", type=int)
    arguments.add_argument("--kernel")
    arguments.add_argument("--jobs", type=int, default=1)
    arguments.add_argument("--applies", action="store_true")
    arguments.add_argument("--cxx", default="g++")
    a = arguments.parse_args()
    chosen = [(n, d) for n, d in enumerate(defects(), 1) if a.only in (None, n) and a.kernel in (None, d["kernel"])]
    bad = [(n, d) for n, d in chosen if applied(d) is None]
    for n, d in bad:
        print(f"{n:3} {d['kernel']}: include/kvx/{d['file']} does not hold this text once: {d['old']!r}")
    if a.applies or bad or not chosen:
        print(f"{len(chosen) - len(bad)} of {len(chosen)} defects can be put into the headers")
        return 1 if bad or not chosen else 0
    a.folder.mkdir(parents=True, exist_ok=True)
    build = builder(a.folder.resolve(), a.cxx)
    for sanitizers in {d["sanitizers"] for _, d in chosen}:
        build.parts(sanitizers)

    def one(entry):
        n, d = entry
        program, complaint = build.program(n, d, applied(d))
        order, how = red(program) if program else (None, "")
        shutil.rmtree(build.folder / str(n), ignore_errors=True)
        verdict = f"red ({order}: {how})" if order else f"DOES NOT COMPILE\n{complaint[:2000]}" if complaint else "GREEN: the test does not see it"
        print(f"{n:3} {d['kernel']:<20} {d['test']:<18} {verdict}", flush=True)
        return order is not None

    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        seen = list(pool.map(one, chosen))
    print(f"{sum(seen)} of {len(seen)} defects are seen")
    return 0 if all(seen) else 1


if __name__ == "__main__":
    sys.exit(main())
