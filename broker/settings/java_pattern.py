"""Whether Java takes a text for a regular expression, as far as its brackets and what repeats tell. Pure.

Python's own expressions differ (named groups, classes such as \\p{Alpha}), so they are no judge; nothing here
is matched by what a client sent. Not looked at: names that are referred to, ranges, what an escape means.
Kept true: the walk is that of Python's engine, with one way on at each letter, for a request may hold 16 MiB
of expressions. By atomic groups, not by possessive repeats: with those, Pythons before 3.11.4 (Debian 12 has
3.11.2) take a class that does not end.
"""

from __future__ import annotations

import re
from itertools import accumulate

CLASSES_MAX = 8  # that lie in one another; Java takes more
ESCAPE = r"\\(?:Q(?:.*?\\E|.*)|[pPxN](?:\{[^}]*\}|(?!\{))|[^QpPxN])"
CLASS = "(?!)"
for _ in range(CLASSES_MAX):
    CLASS = rf"\[(?>(?:\^?\])?)(?>(?:[^\\\[\]]|{ESCAPE}|{CLASS})*)\]"
REPEAT = r"[*+?][+?]?"
COUNTED = r"\{[0-9]+(?:,[0-9]*)?\}[+?]?"  # Java takes it anywhere
# one that ends at once sets flags
GROUP = r"\((?:\?(?:[=!>]|<[=!]|<[A-Za-z][A-Za-z0-9]*>|[a-zA-Z-]*[:)]))?(?!\?)"
WHOLE = rf"(?s:(?>(?:(?:[^\\\[(){{*+?|]+|{ESCAPE}|{CLASS}|\))(?:{REPEAT})?|{COUNTED}|{GROUP}|\|)*))"
BESIDE_GROUPS = rf"(?s:(?>(?:[^\\\[()]+|{ESCAPE}|{CLASS})+))"
DEPTHS = {"(": 1, ")": -1}


def is_java_pattern(text: str) -> bool:
    if re.fullmatch(WHOLE, text) is None:  # compiled when one is judged: that takes some milliseconds
        return False
    depths = list(accumulate(map(DEPTHS.__getitem__, re.sub(BESIDE_GROUPS, "", text)), initial=0))
    return depths[-1] == 0 and min(depths) == 0
