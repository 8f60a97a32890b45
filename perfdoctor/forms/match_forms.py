"""Which recorded calls a form of forms.toml may replace: patterns of nested calls, and groups of equal ones."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from perfdoctor.forms.read_forms import Form, function_of, functions_named, names_in, read_forms
from perfdoctor.forms.recorded_calls import VIEWS, RecordedCall, RecordedCalls, tensors_in

# Fewer calls are no loop whose overhead a single call would save; of very many the first ones stand for all.
MIN_GROUP, MAX_GROUP = 8, 64
_MAYBE = "maybe_"
_PASSING = VIEWS | {"index_select"}


class Match(NamedTuple):
    """Calls that a form may replace.

    Attributes:
        form: The form.
        rows: The calls, in their order.
        pattern: The pattern that they match.
        bound: By name an encoded value of theirs.
        output: What the form has to give, encoded; None for the result of the last call.
    """

    form: Form
    rows: tuple[int, ...]
    pattern: ast.expr
    bound: Mapping[str, Any]
    output: Any = None


def find_matches(recorded: RecordedCalls) -> list[Match]:
    """All calls that some form may replace; of two matches of one form that share calls the larger one."""
    matcher, found = _Matcher(recorded), list[Match]()
    for form in read_forms():
        if form.group:
            found += matcher.find_groups(form)
            continue
        of_form = [match for pattern in form.patterns for match in matcher.find(form, pattern)]
        taken: set[int] = set()
        for match in sorted(of_form, key=lambda each: (-len(each.rows), each.rows)):
            if not taken.intersection(match.rows):
                taken.update(match.rows)
                found.append(match)
    return [match for match in found if _is_for(match, recorded)]


def _is_for(match: Match, recorded: RecordedCalls) -> bool:
    """Whether a form is meant for the device and the types of some calls."""
    tensors = [recorded.tensors[number] for row in match.rows for number in recorded.calls[row].tensors]
    devices, types = ({row[column] for row in tensors} for column in (3, 2))
    form = match.form
    return (not form.devices or bool(form.devices & devices)) and (not form.types or bool(form.types & types))


class _Matcher:
    """Looks for patterns in the calls of a step."""

    def __init__(self, recorded: RecordedCalls) -> None:
        self._recorded = recorded
        self._rows: dict[str, list[int]] = defaultdict(list)
        for row, call in enumerate(recorded.calls):
            self._rows[call.name].append(row)

    def find(self, form: Form, pattern: ast.expr) -> Iterator[Match]:
        """The matches of a pattern whose results on the way nobody else reads."""
        for row in self._candidates(pattern):
            for bound, rows in self._match_call(row, pattern, {}, frozenset()):
                match = Match(form, tuple(sorted(rows)), pattern, {**dict.fromkeys(names_in(pattern)), **bound})
                if self._is_closed(match):
                    yield match
                    break

    def _candidates(self, pattern: ast.expr) -> Iterator[int]:
        """The calls that may be the last one of a pattern."""
        assert isinstance(pattern, ast.Call)
        name = function_of(pattern)
        yield from (row for each in functions_named(name.removeprefix(_MAYBE)) for row in self._rows[each])
        if name.startswith(_MAYBE) and isinstance(pattern.args[0], ast.Call):
            yield from self._candidates(pattern.args[0])

    def _match_call(
        self, row: int, pattern: ast.Call | ast.expr, bound: dict[str, Any], rows: frozenset[int]
    ) -> Iterator[tuple[dict[str, Any], frozenset[int]]]:
        """The ways in which a call is what a pattern says, with the names and the calls that it takes."""
        assert isinstance(pattern, ast.Call)
        name, call = function_of(pattern), self._recorded.calls[row]
        if call.name in functions_named(name.removeprefix(_MAYBE)):
            orders = [call.args]
            if call.name in ("mul", "add") and len(call.args) == 2:
                orders.append(call.args[::-1])
            for args in orders:
                yield from self._match_arguments(call, args, pattern, 0, bound, rows | {row})
        elif name.startswith(_MAYBE) and isinstance(pattern.args[0], ast.Call):
            yield from self._match_call(row, pattern.args[0], bound, rows)

    def _match_arguments(
        self,
        call: RecordedCall,
        args: tuple[Any, ...],
        pattern: ast.Call,
        at: int,
        bound: dict[str, Any],
        rows: frozenset[int],
    ) -> Iterator[tuple[dict[str, Any], frozenset[int]]]:
        if at == len(pattern.args):
            yield from self._match_keywords(call, pattern, bound, rows)
            return
        wanted = pattern.args[at]
        if isinstance(wanted, ast.Starred):
            assert isinstance(wanted.value, ast.Name)
            yield from self._match_keywords(call, pattern, {**bound, wanted.value.id: ["tuple", *args[at:]]}, rows)
            return
        if at < len(args):
            value = args[at]
        elif isinstance(wanted, ast.Name):
            value = call.kwargs.get(wanted.id)
        else:
            return
        for names, taken in self._match_value(value, wanted, bound, rows):
            yield from self._match_arguments(call, args, pattern, at + 1, names, taken)

    def _match_keywords(
        self, call: RecordedCall, pattern: ast.Call, bound: dict[str, Any], rows: frozenset[int]
    ) -> Iterator[tuple[dict[str, Any], frozenset[int]]]:
        names = dict(bound)
        for keyword in pattern.keywords:
            value = call.kwargs.get(keyword.arg or "")
            if isinstance(keyword.value, ast.Constant):
                if value != keyword.value.value:
                    return
            elif isinstance(keyword.value, ast.Name):
                names[keyword.value.id] = value
        yield names, rows

    def _match_value(
        self, value: Any, wanted: ast.expr, bound: dict[str, Any], rows: frozenset[int]
    ) -> Iterator[tuple[dict[str, Any], frozenset[int]]]:
        if isinstance(wanted, ast.Constant):
            if value == wanted.value:
                yield bound, rows
        elif isinstance(wanted, ast.Name):
            if wanted.id not in bound or bound[wanted.id] == value:
                yield {**bound, wanted.id: value}, rows
        elif isinstance(wanted, ast.List):
            if isinstance(value, list) and value[:1] in (["list"], ["tuple"]) and len(value) == len(wanted.elts) + 1:
                yield from self._match_items(value[1:], wanted.elts, bound, rows)
        else:
            item: int | None = None
            if isinstance(wanted, ast.Subscript):
                item, wanted = ast.literal_eval(wanted.slice), wanted.value
            made = self._recorded.maker.get(value[1]) if isinstance(value, list) and value[:1] == ["tensor"] else None
            if made is not None and made[1] == (() if item is None else (item,)):
                yield from self._match_call(made[0], wanted, bound, rows)
            elif (
                isinstance(wanted, ast.Call) and isinstance(wanted.func, ast.Name) and wanted.func.id.startswith(_MAYBE)
            ):
                yield from self._match_value(value, wanted.args[0], bound, rows)

    def _match_items(
        self, values: Sequence[Any], wanted: Sequence[ast.expr], bound: dict[str, Any], rows: frozenset[int]
    ) -> Iterator[tuple[dict[str, Any], frozenset[int]]]:
        if not wanted:
            yield bound, rows
            return
        for names, taken in self._match_value(values[0], wanted[0], bound, rows):
            yield from self._match_items(values[1:], wanted[1:], names, taken)

    def _is_closed(self, match: Match) -> bool:
        """Whether only these calls read what they make on the way, and nobody what the form does not make."""
        rows, recorded = set(match.rows), self._recorded
        last = match.rows[-1]
        for row in match.rows:
            if row == last:
                unread = {
                    each for at in match.form.unread for each in tensors_in(_item(recorded.calls[row].result, at))
                }
                if any(map(self._is_read, unread)):
                    return False
            elif recorded.calls[row].name not in VIEWS:
                made = [
                    number
                    for number in tensors_in(recorded.calls[row].result)
                    if recorded.maker.get(number, (-1,))[0] == row
                ]
                if any(reader not in rows for number in made for reader in recorded.readers.get(number, ())):
                    return False
        return True

    def _is_read(self, number: int) -> bool:
        """Whether a call reads a tensor, other than to pass it on to nobody."""
        for reader in self._recorded.readers.get(number, ()):
            call = self._recorded.calls[reader]
            if call.name not in _PASSING or any(map(self._is_read, tensors_in(call.result))):
                return True
        return False

    def find_groups(self, form: Form) -> Iterator[Match]:
        """The groups of equal calls at one line: those that need no other's result, or each the one before."""
        pattern = form.patterns[0]
        assert isinstance(pattern, ast.Call)
        groups: dict[Any, list[int]] = defaultdict(list)
        for row in self._candidates(pattern):
            groups[self._kind_of(row)].append(row)
        for rows in groups.values():
            if len(rows) < MIN_GROUP or self._are_chained(rows) != (form.group == "chain"):
                continue
            some = rows[:MAX_GROUP]
            each = [next(self._match_call(row, pattern, {}, frozenset()), None) for row in some]
            bindings = [found[0] for found in each if found is not None]
            made = {number for row in some for number in tensors_in(self._recorded.calls[row].result)}
            bound = {
                name: ["list", *(None if made.intersection(tensors_in(b[name])) else b[name] for b in bindings)]
                for name in bindings[0]
            }
            output = ["list", *(self._recorded.calls[row].result for row in some)]
            yield Match(form, tuple(some), pattern, bound, output)

    def _kind_of(self, row: int) -> Any:
        """What equal calls have in common: the line, the function, sizes and numbers."""
        call = self._recorded.calls[row]

        def mask(value: Any) -> Any:
            if isinstance(value, list) and value[:1] == ["tensor"]:
                sizes, strides, kind, *_ = self._recorded.tensors[value[1]]
                return ("tensor", tuple(sizes), tuple(strides or ()), kind)
            return tuple(map(mask, value)) if isinstance(value, (list, tuple)) else (type(value).__name__, value)

        return call.line, call.function, mask(call.args), mask(tuple(sorted(call.kwargs.items())))

    def _are_chained(self, rows: Sequence[int]) -> bool:
        """Whether any of some calls needs the result of another one."""
        members, seen, waiting = set(rows), set[int](), list(rows)
        while waiting:
            for number in self._recorded.calls[waiting.pop()].tensors:
                made = self._recorded.maker.get(number)
                if made is None or made[0] in seen or made[0] < rows[0]:
                    continue
                if made[0] in members:
                    return True
                seen.add(made[0])
                waiting.append(made[0])
        return False


def _item(result: Any, at: int) -> Any:
    return (
        result[1 + at]
        if isinstance(result, list) and result[:1] in (["tuple"], ["list"]) and at + 1 < len(result)
        else None
    )
