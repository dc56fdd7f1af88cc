"""Sections: settings that go together, as pydantic models whose docstrings are the help of their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model, field_validator

from servesim.errors import UserError, shown
from servesim.parsing import pairs, policy_parts, spelt

Settings = dict[str, Any]


class Section(BaseModel):
    """Settings that go together. Texts are read as the values they spell."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _written(cls, value: Any) -> Any:
        if value == "":
            raise ValueError("must not be empty")
        return spelt(value)


def policy_settings(value: Any) -> Settings:
    """Return `name`, `name:key=value,...`, `file.py:Class:key=value,...` or a mapping, as a mapping with `name`."""
    if isinstance(value, str):
        name, class_name, params = policy_parts(value)
        name += f":{class_name}" if class_name else ""
        if name:
            return {"name": name, **pairs(name, params)}
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return dict(value)
    raise UserError(f"a policy must be a name, name:key=value,... or a mapping with `name`, not {shown(value)}")


PolicySettings = Annotated[Settings, BeforeValidator(lambda value: policy_settings(value))]
"""A policy's name and parameters, in any of the forms that policy_settings reads."""


def extended(base: type[Section], parts: Sequence[tuple[str, type[Section]]]) -> type[Any]:
    """Return a class of the same name that has the settings of these parts after its own, each under the section that
    stands before it ("": at the top); parts of one section share it, in their order."""
    top = [part for section, part in parts if not section and part.model_fields]
    inner: dict[str, list[type[Section]]] = {}
    for section, part in parts:
        if section and part.model_fields:
            inner.setdefault(section, []).append(part)
    fields: dict[str, Any] = {}
    for section, group in inner.items():
        name = f"{section.title().replace('_', '')}Settings"
        # Of several base classes pydantic takes the fields of the last one first.
        model = create_model(
            name, __base__=tuple(reversed(group)), __module__=base.__module__, __doc__=group[0].__doc__
        )
        fields[section] = (model, model())
    made: type[Any] = create_model(
        base.__name__.removeprefix("_"),
        __base__=(*reversed(top), base) if top else base,
        __module__=base.__module__,
        __doc__=base.__doc__,
        **fields,
    )
    return made
