#!/usr/bin/env python3
"""Fails on an include that points upwards or sideways: a header may name its own folder or a lower level, and nothing of CUDA from a .hpp.

usage: include_levels.py <root of the repository>
"""
import pathlib
import re
import sys

# The levels of docs/design.md. Files directly in include/kvx are the level where the stages meet; front doors include all of it.
LEVEL = {"core": 0, "backend": 1, "layout": 2, "transform": 2, "sketch": 3, "index": 4, "codec": 4, "rerank": 5, "store": 5, "attend": 6, "cuda": 8}
MEETING = 7  # `cuda` is where the stages meet on the device: above the files that all backends share
FRONT_DOORS = {"kvx.hpp", "kvx.cuh"}
OPT_IN = {"format.hpp", "calibrate"}  # may include everything below, and are included by nothing
DEVICE_ONLY = re.compile(r"(cuda|cub/|thrust/|cooperative_groups|mma\.h|device_|vector_types|cuda/)")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def level(path):
    if path.parts[0] in OPT_IN or path.name in FRONT_DOORS and len(path.parts) == 1:
        return MEETING + 2
    return LEVEL.get(path.parts[0], None) if len(path.parts) > 1 else MEETING


def complaints(include, path):
    mine = level(path)
    if mine is None:
        yield 0, f"folder {path.parts[0]} has no level; give it one in {pathlib.Path(__file__).name}"
        return
    for number, line in enumerate((include / "kvx" / path).read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quoted, name = match.group(1) == '"', match.group(2)
        if quoted:
            name = (include / "kvx" / path).parent.joinpath(name).resolve().relative_to(include.resolve()).as_posix()
        if not name.startswith("kvx/"):
            if path.suffix == ".hpp" and DEVICE_ONLY.match(name):
                yield number, f"<{name}> belongs in a .cuh: users of kvx.hpp have no CUDA"
            continue
        target = pathlib.PurePosixPath(name).relative_to("kvx")
        if not (include / name).is_file():
            yield number, f"<{name}> does not exist"
        elif path.suffix == ".hpp" and target.suffix == ".cuh":
            yield number, f"<{name}> is device code, and this is a .hpp"
        elif target.parts[0] in OPT_IN and target.parts[0] != path.parts[0]:
            yield number, f"<{name}> is opt-in: only a user includes it"
        elif len(target.parts) == 1 and target.name in FRONT_DOORS and path.name not in FRONT_DOORS:
            yield number, f"<{name}> is a front door: include the headers themselves"
        else:
            own_folder = len(path.parts) > 1 and path.parts[0] == target.parts[0] or len(path.parts) == len(target.parts) == 1
            if not own_folder and level(target) >= mine:
                yield number, f"<{name}> (level {level(target)}) is not below level {mine}"


def main(root):
    include = pathlib.Path(root) / "include"
    files = sorted(p.relative_to(include / "kvx") for p in (include / "kvx").rglob("*") if p.suffix in (".hpp", ".cuh"))
    bad = [f"include/kvx/{path}:{number}: {what}" for path in files for number, what in complaints(include, path)]
    print("\n".join(bad) if bad else f"{len(files)} headers, every include points down")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
