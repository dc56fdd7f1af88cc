"""Spec language for synthetic traces: `key=value,key=name(arg=1,arg=2)`."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.errors import UserError, suggest
from servesim.parsing import listed, pairs


@dataclass(frozen=True, slots=True)
class Call:
    """One value of a spec: `name(arg, key=arg)`, or a bare word or number as `name`."""

    key: str
    name: str
    args: dict[str, str]  # positional arguments under "0", "1", ...

    @classmethod
    def parse(cls, key: str, text: str) -> Call:
        name, bracket, rest = text.strip().partition("(")
        if not bracket:
            return cls(key, name, {})
        inside, closing, after = rest.rpartition(")")
        if not closing or after.strip():
            raise UserError(f"synth: {key}={text}: must have the form name(...)")
        args: dict[str, str] = {}
        for i, part in enumerate(listed(f"synth: {key}={name}", inside) if inside.strip() else ()):
            word, equals, value = part.partition("=")
            args[word.strip() if equals else str(i)] = (value if equals else word).strip()
            if len(args) == i:
                raise UserError(f"synth: {key}={name}: {word.strip()} is specified twice")
        return cls(key, name.strip(), args)

    def number(self) -> float:
        """Return the value as a bare number."""
        return to_float(f"synth: {self.key}", self.name)

    def floats(self, *forms: str) -> dict[str, float]:
        """Return the arguments by name, as in the first form that they match; a form is "mean sigma" or, with a
        default, "share=1".

        Positional arguments get the names of the first form, in order.
        """
        parsed = [dict(word.partition("=")[::2] for word in form.split()) for form in forms]
        order = list(parsed[0])
        given = {order[int(k)] if k.isdigit() and int(k) < len(order) else k: v for k, v in self.args.items()}
        every = [name for form in parsed for name in form]
        if len(given) < len(self.args):
            raise UserError(f"synth: {self.key}={self.name}: an argument is given both by position and by name")
        for name in given:
            if name not in every:
                raise UserError(f"synth: {self.key}={self.name}: unknown argument {name!r}{suggest(name, every)}")
        for form in parsed:
            needed = {name for name, default in form.items() if not default}
            if set(given) <= set(form) and needed <= set(given):
                values = {name: default for name, default in form.items() if default} | given
                return {name: to_float(f"synth: {self.key}={self.name}: {name}", v) for name, v in values.items()}
        shapes = " or ".join(f"{self.name}({','.join(form)})" for form in parsed)
        raise UserError(f"synth: {self.key}={self.name}: write {shapes}")


def parse_spec(text: str) -> dict[str, str]:
    """Split a spec into keys and the text of their values; commas inside parentheses belong to the value."""
    values = pairs("synth", text)
    for key, value in values.items():
        if not key or not value:
            raise UserError(f"synth: {f'{key}={value}'!r} is not of the form key=value")
    return values


def to_float(what: str, text: str) -> float:
    """Parse a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value - value != 0:
        raise UserError(f"{what} is {text!r} but must be a number")
    return value
