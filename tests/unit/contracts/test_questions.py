"""Questions of a contract change nothing: asked over and over, they leave every record of a run as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servesim.contracts import Plan, PlanContext, Request, kv_allocators
from servesim.contracts.scheduler import schedulers
from servesim.policies.scheduling.vllm import Vllm
from tests.property.test_cross import crowd
from tests.support.worlds import World

WORLD = World(crowd(3), num_blocks=60, max_num_seqs=12, max_num_batched_tokens=128, max_model_len=192)


class Asking(Vllm):
    """vLLM's, which asks memory everything, twice, before and after it plans."""

    def plan(self, ctx: PlanContext) -> Plan:
        self._ask()
        plan = super().plan(ctx)
        self._ask()
        return plan

    def _ask(self) -> None:
        kv = self.kv
        assert len([*self.waiters()]) == self.num_waiting()
        for each in (*self.waiters(), *self.running):
            assert self._answers(each) == self._answers(each)
        assert [kv.usage(), kv.sharing(), kv.can_fork()] == [kv.usage(), kv.sharing(), kv.can_fork()]

    def _answers(self, request: Request) -> list[object]:
        kv, found = self.kv, [self.kv.slots(request), self.kv.fits(request)]
        if kv.slots(request):
            return [*found, kv.can_swap_out(request)]
        hit = kv.lookup(request)
        left = request.num_tokens - hit.num_tokens
        return [
            *found,
            hit.num_tokens,
            kv.idle_tokens(hit),
            *(kv.can_admit(request, hit, left, n, n) for n in (0, 500)),
        ]


@pytest.mark.parametrize("kv", sorted(kv_allocators.names()))
def test_questions_to_memory_change_nothing(kv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(schedulers._classes, "asking", Asking)
    plain, asked = (replace(WORLD, kv=kv, scheduler=name).run("reference", check=True) for name in ("vllm", "asking"))
    assert asked.recorder.requests.array().tolist() == plain.recorder.requests.array().tolist()
    assert asked.recorder.steps.array().tolist() == plain.recorder.steps.array().tolist()
