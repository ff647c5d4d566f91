"""Puts many defects into one header, each switched on by its number when the program runs: one compilation serves them all.

The place where a text and its defect differ is widened to a whole expression or a whole statement, and both stand there:
    (::simt::has_defect(7) ? (i <= n) : (i < n))        if (::simt::has_defect(8)) { ... } else { ... }
A defect that fits neither form (in a template's argument, a constant expression, an `else`) is left to a program of its own.
"""
import re

OPEN, CLOSE = "([{", ")]}"
DECLARATION = re.compile(r"\s*(?!return|throw|delete)((const|constexpr|static|auto|unsigned|int|float|double|bool|std::\w+)\W|"
                         r"[\w:]+[*&]*( const)? [*&]?\w+ = )")
DECLARES_MEMBERS = re.compile(r"\b(struct|class|namespace|enum|union)\b[^;{}()]*$")


def masked(text):
    """The text with comments, strings and the < > of templates blanked, as long as it was."""
    blank = lambda m: re.sub(r"[^\n]", " ", m.group())
    text = re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", blank, text, flags=re.S)
    angle = re.compile(r"(?<=\w)<(?![ =<])[^<>;(){}]*>")
    while angle.search(text):
        text = angle.sub(lambda m: "_" * len(m.group()), text)
    return text


def open_brackets(code, end):
    stack = []
    for i in range(end):
        if code[i] in OPEN:
            stack.append(i)
        elif code[i] in CLOSE:
            stack.pop()
    return stack


def assigns(code, i):
    return code[i] == "=" and code[i - 1] not in "=!<>" and code[i + 1] != "=" or code[i] == "=" and code[i - 2:i] in ("<<", ">>")


def first_of(code, begin, end, stops):
    """Behind the last stop in [begin, end) that lies in no bracket opened there."""
    depth, at = 0, begin
    for i in range(begin, end):
        depth += (code[i] in OPEN) - (code[i] in CLOSE)
        if depth == 0 and stops(code, i):
            at = i + 1
    return at


def end_of(code, begin, stops):
    """The first place from `begin` on where a stop, or the end of the bracket around, stands."""
    depth = 0
    for i in range(begin, len(code)):
        if depth == 0 and (code[i] in CLOSE or stops(code, i)):
            return i
        depth += (code[i] in OPEN) - (code[i] in CLOSE)
    return len(code)


def is_block(code, brace):
    before = code[:brace].rstrip()
    if DECLARES_MEMBERS.search(before[-200:]):
        return True
    return before[-1:] in ");{}]" or re.search(r"\b(else|do|const|noexcept)$|->\s*[\w:]+$", before) is not None


def matching(code, bracket):
    return end_of(code, bracket + 1, lambda c, i: False)


def region(text, code, begin, end):
    """(begin, end, form) of the whole expression or statement around [begin, end), or None."""
    while begin > 0 and code[begin] == "_" != text[begin] or code[begin - 1] == "_" != text[begin - 1]:  # the argument of a template
        begin -= 1
    while code[end - 1] == "_" != text[end - 1] and code[end] == "_" != text[end]:
        end += 1
    stack = open_brackets(code, begin)
    if not stack:
        return None
    around = stack[-1]
    if code[around] == "[":
        return region(text, code, around, matching(code, around) + 1)
    if code[around] != "{" or not is_block(code, around):
        left = first_of(code, around + 1, begin, lambda c, i: c[i] in ",;" or assigns(c, i))
        right = end_of(code, end, lambda c, i: c[i] in ",;")
        whole = code[left:right].strip()
        constant = re.search(r"\bif constexpr $", code[:around])
        return None if constant or not whole or whole.startswith("{") else (left, right, "expression")
    left = first_of(code, around + 1, begin, lambda c, i: c[i] == ";" or c[i] == "}" and is_block(c, open_brackets(c, i)[-1]))
    right = end if end > begin and code[end - 1] == ";" else end_of(code, end, lambda c, i: c[i] == ";") + 1
    if code[right - 1] in CLOSE or re.match(r"\s*else\b", code[right:]) or re.match(r"\s*(else|case|default)\b", code[left:right]):
        return None
    if DECLARATION.match(code[left:right]):
        first = end_of(code, left, assigns)
        return (first + 1, right - 1, "expression") if first < begin and ";" not in code[first:right - 1] else None
    return (left, right, "statement")


def place(text, code, old, new):
    """(begin, end, form, what stands there with the defect), or None."""
    at, before, behind = text.index(old), 0, 0
    while before < min(len(old), len(new)) and old[before] == new[before]:
        before += 1
    while behind < min(len(old), len(new)) - before and old[-1 - behind] == new[-1 - behind]:
        behind += 1

    def depth(begin, end):
        return sum((c in OPEN) - (c in CLOSE) for c in code[begin:end])

    while before > 0 and depth(at + before, at + len(old) - behind) < 0:
        before -= 1
    while behind > 0 and depth(at + before, at + len(old) - behind) > 0:
        behind -= 1
    begin, end = at + before, at + len(old) - behind
    if depth(begin, end) != 0 or any(depth(begin, i) < 0 for i in range(begin, end)):
        return None
    begin += len(text[begin:end]) - len(text[begin:end].lstrip())
    end = max(begin, end - len(text[begin:end]) + len(text[begin:end].rstrip()))
    found = region(text, code, begin, end)
    if found is None:
        return None
    left, right, form = found
    other = text[left:begin] + new[before:len(new) - behind].strip() + text[end:right]
    return None if form == "expression" and not other.strip() else (left, right, form, other)


def switched(text, defects):
    """The text with those of the (number, old, new) that can be switched, and their numbers."""
    code = masked(text)
    places = [(*found, number) for number, old, new in defects if (found := place(text, code, old, new))]
    places.sort(key=lambda p: (p[0], -p[1]))
    numbers = []

    def written(begin, end, inside):
        result = ""
        while inside:
            left, right, form, other, number = inside.pop(0)
            within = []
            while inside and inside[0][1] <= right:
                within.append(inside.pop(0))
            while inside and inside[0][0] < right:
                inside.pop(0)  # crosses: has a program of its own
            result += text[begin:left]
            mine = written(left, right, within)
            numbers.append(number)
            begin = right
            if form == "expression":
                result += f" (::simt::has_defect({number}) ? ({other.strip()}) : ({mine.strip()}))"
            else:
                result += f" if (::simt::has_defect({number})) {{ {other} }} else {{ {mine} }}"
        return result + text[begin:end]

    return written(0, len(text), places), sorted(numbers)
