"""Which parameters are measured, and why: globs, regexes, module types, callables and named parts of a model.

Decides on names, classes and flags only; it never looks at a gradient.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Union

from torch import nn

from tracker_bridge.collector._names import NamedParameter, core
from tracker_bridge.collector._parts import PARTS, Parts
from tracker_bridge.errors import did_you_mean

Pattern = Union[str, type[nn.Module], Callable[[str, nn.Parameter], bool]]
"""A glob, a `re:` regex, a module class, or a callable `(clean name, parameter) -> bool`."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """One pattern, ready to ask; `label` is how it is written in explanations and errors."""

    label: str
    matches: Callable[[NamedParameter], bool]


@dataclass(frozen=True, slots=True)
class Selection:
    """What the user asked for. Empty `include` and `parts` mean every parameter that requires a gradient."""

    include: tuple[Matcher, ...]
    exclude: tuple[Matcher, ...]
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One parameter with the decision about it and the reason for it."""

    parameter: NamedParameter
    selected: bool
    reason: str


def selection(
    include: Pattern | Iterable[Pattern], exclude: Pattern | Iterable[Pattern], parts: str | Iterable[str]
) -> Selection:
    """Compile what the user wrote.

    Raises:
        TypeError: a pattern is none of the four kinds.
        ValueError: a regex does not compile, or a part is unknown.
    """
    wanted = (parts,) if isinstance(parts, str) else tuple(parts)
    for part in wanted:
        if part not in PARTS:
            raise ValueError(
                f"parts: unknown part {part!r}{did_you_mean(str(part), PARTS)} (known: {', '.join(PARTS)})"
            )
    return Selection(_matchers(include, "include"), _matchers(exclude, "exclude"), wanted)


ModulePattern = Union[str, type[nn.Module], Callable[[str, nn.Module], bool]]
"""A glob on a clean module path, a `re:` regex, a module class, or a callable `(clean path, module) -> bool`."""


def module_chooser(patterns: ModulePattern | Iterable[ModulePattern], option: str) -> Callable[[str, nn.Module], bool]:
    """Whether a module is chosen by any of `patterns`. Raises as `selection` does."""
    if isinstance(patterns, str | type) or callable(patterns):
        patterns = (patterns,)
    return _any([_module_test(pattern, option) for pattern in patterns])


def _any(tests: Sequence[Callable[[str, nn.Module], bool]]) -> Callable[[str, nn.Module], bool]:
    return lambda path, module: any(test(path, module) for test in tests)


def _module_test(pattern: ModulePattern, option: str) -> Callable[[str, nn.Module], bool]:
    if isinstance(pattern, str) and pattern.startswith("re:"):
        regex = _compiled(pattern, option)
        return lambda path, _: regex.search(path) is not None
    if isinstance(pattern, str):
        glob = re.compile(translate(pattern))
        return lambda path, _: glob.match(path) is not None
    if isinstance(pattern, type) and issubclass(pattern, nn.Module):
        kind = pattern
        return lambda _, module: isinstance(core(module), kind)
    if callable(pattern) and not isinstance(pattern, type):
        decide = pattern
        return lambda path, module: bool(decide(path, module))
    raise TypeError(f"{option}: expected a glob, 're:...', a module class or a callable, got {pattern!r}")


def _compiled(pattern: str, option: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern[3:])
    except re.error as error:
        raise ValueError(f"{option}: {pattern!r} is not a regular expression: {error}") from None


def choose(rules: Selection, parameters: Sequence[NamedParameter], parts: Parts) -> list[Choice]:
    """Decide on each parameter. `exclude` wins over `include` and `parts`."""
    return [_choice(rules, parameter, parts) for parameter in parameters]


def unmatched(rules: Selection, parameters: Sequence[NamedParameter]) -> list[str]:
    """A sentence for each `include` pattern that no parameter of the model answers to."""
    names = [parameter.name for parameter in parameters]
    messages = []
    for matcher in rules.include:
        if not any(matcher.matches(parameter) for parameter in parameters):
            near = difflib.get_close_matches(matcher.label, names, n=1, cutoff=0.3)
            messages.append(
                f"include: {matcher.label} matches no parameter" + (f" (nearest: {near[0]!r})" if near else "")
            )
    return messages


def _choice(rules: Selection, parameter: NamedParameter, parts: Parts) -> Choice:
    if not parameter.parameter.requires_grad:
        return Choice(parameter, False, "frozen (requires_grad is False)")
    for matcher in rules.exclude:
        if matcher.matches(parameter):
            return Choice(parameter, False, f"excluded by {matcher.label}")
    for matcher in rules.include:
        if matcher.matches(parameter):
            return Choice(parameter, True, f"included by {matcher.label}")
    for part in rules.parts:
        if part in parts[parameter.name]:
            return Choice(parameter, True, f"part {part!r}")
    if rules.include or rules.parts:
        return Choice(parameter, False, "in no include pattern or part")
    return Choice(parameter, True, "everything is included")


def _matchers(patterns: Pattern | Iterable[Pattern], option: str) -> tuple[Matcher, ...]:
    if isinstance(patterns, str | type) or callable(patterns):
        patterns = (patterns,)
    elif not isinstance(patterns, Iterable):
        raise TypeError(f"{option}: expected patterns, got {type(patterns).__name__}")
    return tuple(_matcher(pattern, option) for pattern in patterns)


def _matcher(pattern: Pattern, option: str) -> Matcher:
    if isinstance(pattern, str):
        if pattern.startswith("re:"):
            regex = _compiled(pattern, option)
            return Matcher(repr(pattern), lambda p: any(regex.search(name) for name in (p.name, *p.aliases)))
        glob = re.compile(translate(pattern))
        return Matcher(repr(pattern), lambda p: any(glob.match(name) for name in _paths(p)))
    if isinstance(pattern, type):
        if not issubclass(pattern, nn.Module):
            raise TypeError(f"{option}: {pattern.__name__} is a class but no torch.nn.Module")
        kind = pattern
        return Matcher(kind.__name__, lambda p: any(issubclass(place.kind, kind) for place in p.places))
    if callable(pattern):
        decide = pattern
        label = getattr(pattern, "__name__", repr(pattern))
        return Matcher(f"{label}()", lambda p: any(bool(decide(name, p.parameter)) for name in (p.name, *p.aliases)))
    raise TypeError(f"{option}: expected a glob, 're:...', a module class or a callable, got {type(pattern).__name__}")


def _paths(parameter: NamedParameter) -> Iterable[str]:
    """What a glob may match: the names of the parameter and the paths of the modules around it."""
    for name in (parameter.name, *parameter.aliases):
        yield name
        while "." in name:
            name = name.rpartition(".")[0]
            yield name
