"""Regular expressions that cannot hang: the patterns of failure rules, matched in time linear in the text.

A pattern comes from a user and is run by the control plane on text that comes from a user's process. A backtracking engine needs
exponential time for some pairs of the two, so this one walks all alternatives at once (Thompson's construction): a step costs
at most the size of the program, and both are bounded.

The language is the part of Python's that this can do: literals, `.`, classes `[a-z]` and `[^a-z]`, `\\d \\w \\s` and their
opposites, `^` and `$` (ends of a line), `\\b`, `* + ? {n} {n,m}` with or without a following `?`, `|`, groups `( )` and `(?: )`,
and `(?i)` at the very beginning. No back-references and no look-around: they are what cannot be done in linear time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec

MAX_PATTERN = 256  # characters
MAX_PROGRAM = 2048  # instructions, after `{n,m}` is written out
MAX_TEXT = 4096  # characters that are looked at: the last ones
MAX_DEPTH = 20  # groups within groups

CharTest = Callable[[str], bool]


class BadPattern(ValueError):
    """The rest of the sentence 'The pattern ...'."""


class _Char(msgspec.Struct, frozen=True):
    test: CharTest


class _Split(msgspec.Struct, frozen=True):
    first: int
    second: int


class _Jump(msgspec.Struct, frozen=True):
    to: int


class _Assert(msgspec.Struct, frozen=True):
    kind: str  # ^ $ b


class _Match(msgspec.Struct, frozen=True):
    pass


Op = _Char | _Split | _Jump | _Assert | _Match
# A piece of program whose targets are relative to its own beginning, so that it can be put anywhere and repeated.
Piece = list[Op]

_CLASSES: dict[str, CharTest] = {
    "d": str.isdigit,
    "D": lambda c: not c.isdigit(),
    "w": lambda c: c.isalnum() or c == "_",
    "W": lambda c: not (c.isalnum() or c == "_"),
    "s": str.isspace,
    "S": lambda c: not c.isspace(),
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> tuple[Op, ...]:
    """Raises BadPattern."""
    if len(pattern) > MAX_PATTERN:
        raise BadPattern(f"has {len(pattern)} characters; {MAX_PATTERN} are allowed")
    return (*_Parser(pattern).parse(), _Match())


def found_in(pattern: str, text: str) -> bool:
    """Whether the pattern occurs in the end of the text."""
    program, text = compile_pattern(pattern), text[-MAX_TEXT:]
    states: set[int] = set()
    for at in range(len(text) + 1):
        states = _closure(program, states | {0}, text, at)
        if len(program) - 1 in states:
            return True
        if at < len(text):
            char = text[at]
            states = {s + 1 for s in states if isinstance(op := program[s], _Char) and op.test(char)}
    return False


def _closure(program: tuple[Op, ...], states: set[int], text: str, at: int) -> set[int]:
    """All instructions that can be reached without reading a character."""
    reached: set[int] = set()
    todo = list(states)
    while todo:
        state = todo.pop()
        if state in reached:
            continue
        reached.add(state)
        op = program[state]
        if isinstance(op, _Jump):
            todo.append(state + op.to)
        elif isinstance(op, _Split):
            todo += (state + op.first, state + op.second)
        elif isinstance(op, _Assert) and _holds(op.kind, text, at):
            todo.append(state + 1)
    return reached


def _holds(kind: str, text: str, at: int) -> bool:
    if kind == "^":
        return at == 0 or text[at - 1] == "\n"
    if kind == "$":
        return at == len(text) or text[at] == "\n"
    is_word = _CLASSES["w"]
    return (at > 0 and is_word(text[at - 1])) != (at < len(text) and is_word(text[at]))


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._folds = pattern.startswith("(?i)")
        self._text = pattern[4:] if self._folds else pattern
        self._at = 0
        self._depth = 0

    def parse(self) -> Piece:
        piece = self._either()
        if self._at < len(self._text):
            raise BadPattern("has a `)` without `(`")
        return piece

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        self._at += 1
        return char

    def _either(self) -> Piece:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadPattern(f"has more than {MAX_DEPTH} groups within groups")
        piece = self._sequence()
        while self._peek() == "|":
            self._next()
            other = self._sequence()
            piece = _bounded([_Split(1, len(piece) + 2), *piece, _Jump(len(other) + 1), *other])
        self._depth -= 1
        return piece

    def _sequence(self) -> Piece:
        piece: Piece = []
        while (char := self._peek()) and char not in "|)":
            piece = _bounded(piece + self._repeated(self._atom()))
        return piece

    def _atom(self) -> Piece:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return [_Char(self._set())]
        if char == ".":
            return [_Char(lambda c: c != "\n")]
        if char in "^$":
            return [_Assert(char)]
        if char == "\\":
            return [self._escape()]
        if char in "*+?":
            raise BadPattern(f"repeats nothing with `{char}`")
        return [self._literal(char)]

    def _group(self) -> Piece:
        if self._peek() == "?":
            if self._text[self._at : self._at + 2] != "?:":
                raise BadPattern("has a group of a kind that is not known here; only ( ) and (?: ) are")
            self._at += 2
        piece = self._either()
        if self._next() != ")":
            raise BadPattern("has a `(` without `)`")
        return piece

    def _escape(self) -> Op:
        char = self._next()
        if char == "b":
            return _Assert("b")
        if char in _CLASSES and char:
            return _Char(_CLASSES[char])
        if char in _ESCAPES and char:
            return self._literal(_ESCAPES[char])
        if not char or char.isalnum():
            raise BadPattern(f"has `\\{char}`, which is not known here")
        return self._literal(char)

    def _literal(self, char: str) -> _Char:
        if self._folds:
            folded = char.casefold()
            return _Char(lambda c: c.casefold() == folded)
        return _Char(lambda c: c == char)

    def _set(self) -> CharTest:
        is_negated = self._peek() == "^"
        if is_negated:
            self._next()
        tests: list[CharTest] = []
        while self._peek() != "]" or not tests:
            char = self._next()
            if not char:
                raise BadPattern("has a `[` without `]`")
            if char == "\\":
                op = self._escape()
                if not isinstance(op, _Char):
                    raise BadPattern("has `\\b` within a class")
                tests.append(op.test)
            elif self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._next()
                tests.append(self._range(char, self._next()))
            else:
                tests.append(self._literal(char).test)
        self._next()
        return lambda c: any(test(c) for test in tests) != is_negated

    def _range(self, low: str, high: str) -> CharTest:
        if high == "\\" or high < low:
            raise BadPattern(f"has the range `{low}-{high}`, which holds nothing")
        if self._folds:
            return lambda c: low <= c.lower() <= high or low <= c.upper() <= high
        return lambda c: low <= c <= high

    def _repeated(self, piece: Piece) -> Piece:
        char = self._peek()
        if char not in ("*", "+", "?", "{"):
            return piece
        if char == "{":
            low, high = self._counts()
        else:
            self._next()
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        if self._peek() == "?":
            self._next()  # lazy or greedy is about what is captured; here only whether there is a match counts
        if self._peek() in ("*", "+", "{") and self._peek():
            raise BadPattern("repeats a repetition; put a group around the inner one")
        return _times(piece, low, high)

    def _counts(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : end].partition(",") if end > 0 else ("", "", "")
        if not low.isdecimal() or (high and not high.isdecimal()):
            raise BadPattern("has a `{` that is no count; write `\\{` for the character")
        self._at = end + 1
        first = int(low)
        last = int(high) if high else (None if comma else first)
        if last is not None and last < first:
            raise BadPattern(f"has the count `{{{low},{high}}}`, which holds nothing")
        if max(first, last or 0) > MAX_PROGRAM:
            raise BadPattern("is too long once its counts are written out")
        return first, last


def _times(piece: Piece, low: int, high: int | None) -> Piece:
    size = len(piece)
    made: Piece = []
    for _ in range(low):
        made = _bounded(made + piece)
    if high is None:
        return _bounded([*made, _Split(1, size + 2), *piece, _Jump(-size - 1)])
    for _ in range(high - low):
        made = _bounded([*made, _Split(1, size + 1), *piece])
    return made


def _bounded(piece: Piece) -> Piece:
    if len(piece) > MAX_PROGRAM:
        raise BadPattern("is too long once its counts are written out")
    return piece
