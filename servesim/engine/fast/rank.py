"""A data-parallel rank whose requests that decode together are counted together; its steps are taken one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servesim.engine.fast.replica import FastReplica

if TYPE_CHECKING:
    from servesim.engine.data_parallel import Group


class FastRank(FastReplica):
    """A rank that plans when its group does."""

    group: Group

    def _want_plan(self) -> None:
        self.group.want_plan()
