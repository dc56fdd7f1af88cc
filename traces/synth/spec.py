"""The little language of synthetic traces: `key=value,key=name(arg=1,arg=2)`."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.errors import UserError, suggest


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
        args: dict[str, str] = {}
        for i, part in enumerate(split(rest.removesuffix(")"))):
            word, equals, value = part.partition("=")
            args[word.strip() if equals else str(i)] = (value if equals else word).strip()
        return cls(key, name.strip(), args)

    def number(self) -> float:
        """A bare number."""
        return to_float(f"synth: {self.key}", self.name)

    def floats(self, *forms: str) -> dict[str, float]:
        """The arguments of the form whose names match: a form is "mean sigma" or, with a default, "share=1".

        Positional arguments fill the first form in order.
        """
        parsed = [dict(word.partition("=")[::2] for word in form.split()) for form in forms]
        order = list(parsed[0])
        given = {order[int(k)] if k.isdigit() and int(k) < len(order) else k: v for k, v in self.args.items()}
        every = [name for form in parsed for name in form]
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
    """Key to value text; commas inside brackets belong to the value."""
    values: dict[str, str] = {}
    for part in split(text):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UserError(f"synth: {part.strip()!r} is not key=value")
        if key.strip() in values:
            raise UserError(f"synth: {key.strip()} is given twice")
        values[key.strip()] = value.strip()
    return values


def split(text: str) -> list[str]:
    """Parts between the commas that stand outside brackets."""
    parts, depth, part = [], 0, ""
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            break
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    if depth != 0:
        raise UserError(f"synth: brackets do not match in {text!r}")
    return [p for p in [*parts, part] if p.strip()]


def to_float(what: str, text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value - value != 0:
        raise UserError(f"{what} is {text!r}, must be a number")
    return value
