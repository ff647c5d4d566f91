#!/usr/bin/env python3
"""Shows each check a small tree with one fault, and demands that the check finds it: a check that cannot fail proves nothing."""
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
GOOD = "#pragma once\n// A header for this test.\n"
UNFINISHED = "TO" "DO"
PTXAS = """ptxas info    : Compiling entry function '_Z1kv' for 'sm_90'
ptxas info    : Function properties for _Z1kv
    8 bytes stack frame, %d bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8 bytes smem, 400 bytes cmem[0]
"""
RESOURCES = ["kernel_resources.py", "1", "a.cu", "--", "sh", "-c", 'for last; do :; done; cat "$last"', "sh"]
STRICT = ["c++", "-std=c++20", "-Wall", "-Werror", "-fsyntax-only"]

# name of the fault: check and its arguments after the tree, files of the tree, what the check must print (None: the tree is good)
CASES = {
    "good levels": (["include_levels.py"], {"include/kvx/core/a.hpp": GOOD, "include/kvx/cache.hpp": GOOD + "#include <kvx/core/a.hpp>\n"}, None),
    "upward include": (["include_levels.py"], {"include/kvx/core/a.hpp": GOOD + "#include <kvx/cache.hpp>\n", "include/kvx/cache.hpp": GOOD},
                       "core/a.hpp:3: <kvx/cache.hpp> (level 7) is not below level 0"),
    "sideways include": (["include_levels.py"], {"include/kvx/index/a.hpp": GOOD + "#include <kvx/codec/b.hpp>\n", "include/kvx/codec/b.hpp": GOOD},
                         "is not below level 4"),
    "quoted upward include": (["include_levels.py"], {"include/kvx/core/a.hpp": GOOD + '#include "../cache.hpp"\n', "include/kvx/cache.hpp": GOOD},
                              "is not below level 0"),
    "missing header": (["include_levels.py"], {"include/kvx/core/a.hpp": GOOD + "#include <kvx/core/b.hpp>\n"}, "does not exist"),
    "CUDA in a .hpp": (["include_levels.py"], {"include/kvx/core/a.hpp": GOOD + "#include <cub/block/block_scan.cuh>\n"}, "have no CUDA"),
    "folder without a level": (["include_levels.py"], {"include/kvx/other/a.hpp": GOOD}, "has no level"),
    "no header at all": (["include_levels.py"], {}, "0 headers"),
    "good text": (["text_rules.py"], {"include/kvx/core/a.hpp": GOOD}, None),
    "unfinished end": (["text_rules.py"], {"docs/a.md": f"{UNFINISHED}: more\n"}, "has no place here"),
    "machine path": (["text_rules.py"], {"docs/a.md": "see /ho" "me/x\n"}, "has no place here"),
    "long file": (["text_rules.py"], {"include/kvx/core/a.hpp": GOOD + "\n" * 400}, "402 lines"),
    "long line": (["text_rules.py"], {"include/kvx/core/a.hpp": GOOD + "//" + "x" * 139 + "\n"}, "141 columns"),
    "no sentence": (["text_rules.py"], {"include/kvx/core/a.hpp": "#pragma once\nint x;\n"}, "one sentence"),
    "a macro that stays": (["text_rules.py"], {"include/kvx/core/a.hpp": GOOD + "#define MORE 1\n"}, "macro MORE"),
    "a name that says nothing": (["text_rules.py"], {"include/kvx/utils/a.hpp": GOOD}, "says nothing"),
    "good header": (["compile_alone.py", "1", ".hpp", *STRICT], {"include/kvx/core/a.hpp": GOOD + "inline int a() { return 1; }\n"}, None),
    "missing include": (["compile_alone.py", "1", ".hpp", *STRICT], {"include/kvx/core/a.hpp": GOOD + "inline std::size_t a() { return 1; }\n"},
                        "does not compile alone"),
    "missing include of another's first": (["compile_alone.py", "1", ".hpp", *STRICT],
                                           {"include/kvx/core/a.hpp": GOOD + "inline std::size_t a() { return 1; }\n",
                                            "include/kvx/core/b.hpp": GOOD + "#include <kvx/core/a.hpp>\n#include <cstddef>\n"}, "does not compile alone"),
    "missing include of another's second": (["compile_alone.py", "1", ".hpp", *STRICT],
                                            {"include/kvx/core/a.hpp": GOOD + "inline std::size_t a() { return 1; }\n",
                                             "include/kvx/core/b.hpp": GOOD + "#include <cstddef>\n#include <kvx/core/a.hpp>\n"}, "does not compile alone"),
    "good refusals": (["compile_fail.py", *STRICT], {"a.cpp": "// refused: never\nstatic_assert(false, \"never\");\n", "b.cpp": "// accepted\n"}, None),
    "refused for another reason": (["compile_fail.py", *STRICT], {"a.cpp": "// refused: never\nint x = y;\n"}, "no error says /never/"),
    "kernels in registers": (RESOURCES, {"a.cu": PTXAS % 0}, None),
    "a kernel that spills": (RESOURCES, {"a.cu": PTXAS % 4}, "1 kernels, 1 spill"),
    "no kernel": (RESOURCES, {"a.cu": ""}, "0 kernels"),
    "not refused": (["compile_fail.py", *STRICT], {"a.cpp": "// refused: never\nint x = 1;\n"}, "must be refused and compiles"),
}


def main():
    bad = 0
    for fault, (check, tree, expected) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            for name, text in tree.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            result = subprocess.run([sys.executable, HERE / check[0], folder, *check[1:]], capture_output=True, text=True)
        right = result.returncode == 0 if expected is None else result.returncode == 1 and expected in result.stdout
        bad += not right
        print(f"{fault}: {'as expected' if right else 'WRONG, exit ' + str(result.returncode) + chr(10) + result.stdout + result.stderr}")
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "a.cpp")
        source.write_text('#include <cstdio>\nint main() { std::printf("%d\\n", X); return 0; }\n')
        for builds, code in ((["c++ -DX=0", "c++ -O2 -DX=0"], 0), (["c++ -DX=0", "c++ -DX=1"], 1)):
            command = [sys.executable, HERE / "same_bits.py", folder, "baseline", source, "--", *builds]
            result = subprocess.run(command, capture_output=True, text=True)
            right = result.returncode == code
            bad += not right
            print(f"same bits of {builds}: {'as expected' if right else 'WRONG' + chr(10) + result.stdout + result.stderr}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
