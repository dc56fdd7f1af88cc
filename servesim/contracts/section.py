"""Sections: groups of related settings, as pydantic models whose docstrings are the help of their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, field_validator

from servesim.errors import UserError, shown
from servesim.parsing import pairs, policy_parts, spelt

Settings = dict[str, Any]


class Section(BaseModel):
    """A group of related settings. Texts are parsed into the values they represent."""

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
"""A policy's name and parameters, in any of the forms that policy_settings accepts."""
