"""Parse manual pages in roff, with the macros man or mdoc, into the plain text of their sections."""

import re
from collections.abc import Callable

_LAYOUT = frozenset([
    "TH", "PP", "P", "LP", "IP", "HP", "TP", "TQ", "RS", "RE", "UR", "UE", "PD", "DT", "sp", "br", "nf", "fi", "ft",
    "in", "ti", "ta", "ad", "na", "ne", "hy", "nh", "IX", "Vb", "Ve", "EX", "EE", "so", "if", "ie", "el", "nr", "ds",
    "rm", "rr", "tr", "bp", "ce", "rt", "ll", "pl", "AT", "UC", "Dd", "Dt", "Os", "Bl", "El", "Bd", "Ed", "Pp", "AS",
    "AP", "VS", "VE", "BS", "BE", "CS", "CE", "Id", "Sm", "Rs", "Re"])
# macros of mdoc that may stand among the arguments of another
_INLINE = frozenset([
    "Ad", "Aq", "Ar", "Bq", "Cd", "Cm", "Dq", "Dv", "Em", "Er", "Ev", "Fa", "Fl", "Fn", "Ic", "Li", "Ns", "Pa", "Pq",
    "Ql", "Qq", "Sq", "Sy", "Tn", "Va", "Vt", "Xr"])
_JOINED = {"BR", "RB", "IR", "RI", "BI", "IB", "SM", "SB"}
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
_CHARACTERS = {"em": "-", "en": "-", "hy": "-", "aq": "'", "dq": '"', "rs": "\\", "lq": '"', "rq": '"', "oq": "'",
          "cq": "'", "ga": "`", "ha": "^", "ti": "~", "bu": "", "co": "", "ss": "ß", "ae": "æ", "mu": "µ"}
_ESCAPES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r'\\["#].*'), ""),
    (re.compile(r"\\f(?:\[[^]]*\]|\(..|.)|\\s(?:[+-]?\d+|\[[^]]*\]|\([+-]?\d\d)|\\[hvwl]'[^']*'"), ""),
    (re.compile(r'\\\*(?:\(([LR])"|\[[^]]*\]|\(..|.)'), lambda found: '"' if found[1] else ""),
    (re.compile(r"\\(?:\((..)|\[([^]]*)\])"), lambda found: _CHARACTERS.get(found[1] or found[2], "")),
    (re.compile(r"\\([-.'`])"), r"\1"), (re.compile(r"\\[ ~0]"), " "), (re.compile(r"\\e"), r"\\"),
    (re.compile(r"\\[&|^c:%/,ud{}!?)]"), "")]


def sections(source: str) -> dict[str, str]:
    """Return the text of each section as one line, by its heading in capitals."""
    found: dict[str, list[str]] = {}
    lines, skipping, name = found.setdefault("", []), False, ""
    for line in source.splitlines():
        if skipping or re.match(r"[.']\s*(?:de|ig|am)\b", line):
            skipping = not line.startswith("..")
            continue
        macro, arguments = _macro(line)
        if macro in ("SH", "Sh"):
            lines = found.setdefault(" ".join(arguments).upper(), [])
        elif macro == "Nm":
            name = arguments[0] if not name and arguments else name
            lines.append(" ".join(arguments) or name)
        else:
            lines.append(_line(macro, arguments))
    return {head: " ".join(" ".join(body).split()) for head, body in found.items()}


def _macro(line: str) -> tuple[str, list[str]]:
    """Return the macro of a line and its arguments; of a line of text, "" and the text."""
    match = re.match(r"[.']\s*([A-Za-z]{0,2}|\\\")(?![A-Za-z])(.*)", line)
    if match is None:
        return "", [unescaped(line)]
    arguments = [unescaped(quoted.replace('""', '"') or bare) for quoted, bare in _ARGUMENT.findall(match[2])]
    return match[1] or "br", arguments


def _line(macro: str, arguments: list[str]) -> str:
    if macro in _LAYOUT or macro.startswith("\\"):
        return ""
    if macro == "Xr" and len(arguments) > 1:
        return f"{arguments[0]}({arguments[1]}) " + " ".join(arguments[2:])
    if macro == "Nd":
        return "- " + " ".join(arguments)
    if macro in _JOINED:
        return "".join(arguments)
    return " ".join(word for word in arguments if word not in _INLINE)


def unescaped(text: str) -> str:
    """Remove the escapes for fonts and sizes from a text, and resolve those for characters."""
    if "\\" in text:
        for pattern, replacement in _ESCAPES:
            text = pattern.sub(replacement, text)
    return text
