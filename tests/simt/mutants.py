#!/usr/bin/env python3
"""Puts defects into the kernels, builds the tests that must see them for the simulator, and demands that the tests fail.

usage: mutants.py <build folder> [--only N] [--kernel NAME] [--jobs N] [--applies] [--resume] [--cxx COMPILER]
  --only N       the N-th of the list
  --kernel NAME  those of one kernel
  --applies      no compiler: only whether the text of each defect is still in the headers, once
  --resume       without those that an earlier run in the same folder has seen (its seen.txt lists them)
Defects are listed in mutants.txt. Those of one test stand in one program, which runs with one of them at a time (switched.py). A test has
failed when it does under one of four orders of threads, with streams that run late in one of them.
"""
import argparse
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import time

from switched import switched

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ORDERS = [{"SIMT_SEED": "0"}, {"SIMT_SEED": "3", "SIMT_LAZY": "1"}, {"SIMT_SEED": "1"}, {"SIMT_SEED": "2"}]
WARNINGS = ["-Wno-unknown-pragmas", "-w"]  # defects leave variables unused
LIMIT = 900  # seconds of one run, on a machine that is busy


def defects():
    for line in (HERE / "mutants.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            fields = line.split("\t")
            assert len(fields) == 6, f"six fields, tabs between: {line}"
            kernel, test, sanitizers, file, old, new = ("" if f == "(nothing)" else f.replace("\\n", "\n") for f in fields)
            test, _, case = test.partition(": ")
            yield {"kernel": kernel, "test": test, "case": case or "*", "sanitizers": sanitizers, "file": file, "old": old, "new": new}


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
        first = [f"-I{headers}"] if headers else []
        command = [self.cxx, "-std=c++20", *first, f"-I{ROOT / 'include'}", *self.includes, *options, "-c", source, "-o", target]
        return self.run(command)

    def parts(self, sanitizers):
        """The engine, the stand-in for CUDA's runtime, doctest's main and the host's kernels, without defects."""
        flags = [] if sanitizers == "none" else [f"-fsanitize={sanitizers}"]
        objects = []
        for source, options in [*((HERE / f"{n}.cpp", ["-O2"]) for n in ("collectives", "engine", "fiber")),
                                (HERE / "fake_cudart.cpp", ["-O1", *flags]), (ROOT / "tests" / "main.cpp", ["-O1", *flags]),
                                (ROOT / "tests" / "support" / "compiled_kernels.cpp", ["-O1"])]:
            target = self.folder / f"{'_'.join([source.stem, *flags]) if flags and options[-1] == flags[-1] else source.stem}.o"
            if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
                built = self.compile(source, target, *options)
                if built.returncode:
                    raise SystemExit(built.stderr)
            objects.append(target)
        return objects

    def program(self, name, test, sanitizers, headers):
        """The test with these headers before the ones without defects, or the compiler's complaint."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        for file, text in headers.items():
            header = folder / "include" / "kvx" / file
            header.parent.mkdir(parents=True, exist_ok=True)
            header.write_text(text)
        flags = [] if sanitizers == "none" else [f"-fsanitize={sanitizers}"]
        built = self.compile(ROOT / "tests" / "device" / f"{test}.cu", folder / "test.o", "-xc++", "-O0", "-fno-strict-aliasing", *WARNINGS, *flags,
                             "-include", HERE / "simt.hpp", "-include", HERE / "defects.hpp",
                             "-include", ROOT / "tests" / "support" / "compiled_kernels.hpp", headers=folder / "include")
        if built.returncode == 0:
            built = self.run([self.cxx, *flags, folder / "test.o", *self.parts(sanitizers), "-o", folder / "test", "-lpthread"])
        return (folder / "test", "") if built.returncode == 0 else (None, built.stderr)


def red(program, number=0, case="*", orders=ORDERS):
    """Under which order the program fails with a defect, and how."""
    for order in orders:
        environment = {**os.environ, **order, "SIMT_DEFECT": str(number), "UBSAN_OPTIONS": "halt_on_error=1", "KVX_TEST_OPERATIONS": "300"}
        name = " ".join(f"{k}={v}" for k, v in order.items())
        try:
            run = subprocess.run([str(program), "--abort-after=1", f"--test-case={case}"], capture_output=True, text=True, errors="replace", env=environment, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return name, "no end"
        if run.returncode != 0:
            text = run.stdout + run.stderr
            how = next((w for w in ("heap-buffer-overflow", "global-buffer-overflow", "use-after-poison", "data race", "runtime error", "simt:", "is NOT correct", "did NOT throw",
                                    "FAILED") if w in text), f"exit {run.returncode}")
            return name, how.replace("is NOT correct", "a check").replace("simt:", "the simulator")
    return None, ""


def together(build, name, test, sanitizers, defects):
    """One program that holds those of the defects that can be switched on when it runs, and their numbers."""
    headers, numbers = {}, []
    for file in sorted({d["file"] for _, d in defects}):
        of_file = [(n, d["old"], d["new"]) for n, d in defects if d["file"] == file]
        headers[file], inside = switched((ROOT / "include" / "kvx" / file).read_text(), of_file)
        numbers += inside
    program, complaint = build.program(name, test, sanitizers, headers) if numbers else (None, "")
    if complaint:
        print(f"    {test}: its defects do not compile together\n{complaint[:2000]}", flush=True)
    cases = {d["case"] for _, d in defects}
    if program and (failed := red(program, case="*" if "*" in cases else ",".join(cases), orders=ORDERS[:1]))[0]:
        print(f"    {test}: fails without a defect ({failed[0]}: {failed[1]})", flush=True)
        program = None
    return program, numbers if program else []


def look(build, test, sanitizers, defects, report):
    """Whether the test sees each of its defects; what one program cannot hold is compiled alone."""
    name = f"{test}_{sanitizers.replace(',', '_')}"
    program, numbers = together(build, name, test, sanitizers, defects)
    for n, d in defects:
        begin = time.monotonic()
        complaint = ""
        if n in numbers:
            order, how = red(program, n, d["case"])
        else:
            alone, complaint = build.program(f"{name}_{n}", test, sanitizers, {d["file"]: applied(d)})
            order, how = red(alone, case=d["case"]) if alone else (None, "")
            shutil.rmtree(build.folder / f"{name}_{n}", ignore_errors=True)
        verdict = f"red ({order}: {how})" if order else f"DOES NOT COMPILE\n{complaint[:2000]}" if complaint else "GREEN: the test does not see it"
        report(n, d, order is not None, f"{time.monotonic() - begin:4.0f} s  {verdict}")
    shutil.rmtree(build.folder / name, ignore_errors=True)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--only", type=int)
    arguments.add_argument("--kernel")
    arguments.add_argument("--jobs", type=int, default=1)
    arguments.add_argument("--applies", action="store_true")
    arguments.add_argument("--resume", action="store_true")
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
    record = build.folder / "seen.txt"
    before = set(record.read_text().splitlines()) if a.resume and record.exists() else set()
    if not before:
        record.write_text("")
    chosen = [(n, d) for n, d in chosen if repr(d) not in before]
    for sanitizers in {d["sanitizers"] for _, d in chosen}:
        build.parts(sanitizers)

    seen = []

    def report(n, d, is_seen, text):
        print(f"{n:3} {d['kernel']:<20} {d['test']:<18} {text}", flush=True)
        seen.append(is_seen)
        if is_seen:
            with record.open("a") as to:
                to.write(f"{d!r}\n")

    groups = {}
    for n, d in chosen:
        groups.setdefault((d["test"], d["sanitizers"]), []).append((n, d))
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        list(pool.map(lambda g: look(build, *g[0], g[1], report), groups.items()))
    print(f"{sum(seen)} of {len(seen)} defects are seen" + (f", {len(before)} earlier" if before else ""))
    return 0 if all(seen) else 1


if __name__ == "__main__":
    sys.exit(main())
