"""Pages that quote a program quote what is compiled.     quoted_programs.py ROOT

A quotation is a fenced block behind a line `<!-- PATH -->`; it must equal the file PATH from its first include on.
"""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
quotation = re.compile(r"^<!-- (\S+) -->\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
found, wrong = 0, []
for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
    for path, text in quotation.findall(page.read_text()):
        found += 1
        source = (root / path).read_text()
        if text != source[source.index("#include"):]:
            wrong.append(f"{page.relative_to(root)}: the program quoted from {path} is not what the file holds")
print("\n".join(wrong) or f"{found} quotations, all as compiled")
sys.exit(1 if wrong or found == 0 else 0)
