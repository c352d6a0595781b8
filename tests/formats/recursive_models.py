"""Models of a rule that contain one another: a union is tried anew at each level."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class Not(BaseModel):
    op: Literal["not"]
    arg: Not | All | Has


class All(BaseModel):
    op: Literal["all"]
    arg: Not | All | Has


class Has(BaseModel):
    op: Literal["has"]
    name: str
