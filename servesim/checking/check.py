"""Checks of a policy, a connector or a feature in random small worlds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import numpy as np

from servesim.checking.attempt import Attempt, attempt
from servesim.checking.conditions import Conditions, Elsewhere
from servesim.checking.findings import Finding, lines
from servesim.checking.placed import ABOUT, Watched, world_of
from servesim.checking.settings import impurities, settings_failures
from servesim.checking.subject import Subject
from servesim.checking.whole_runs import whole_run_findings
from servesim.checking.world import World
from servesim.contracts import State
from servesim.plugins.misspelled import classes_beside, misspelled
from servesim.records.columns import REQUEST_COLUMNS, STEP_COLUMNS, Rows
from servesim.run.agreement import difference

WORLDS = 80
BASE = Conditions()
OTHER = Conditions(hash_seed=2, clock=1, random_seed=1, ballast=37)
CAUSES = {
    "its own unseeded generator, or the order of a set of objects": (
        "in another process",
        Conditions(ballast=37),
    ),
    "the global state of random or numpy.random": ("after another seed", Conditions(random_seed=1)),
    "the wall clock": ("by another clock", Conditions(clock=1)),
    "hash() or the order of a set": ("under another PYTHONHASHSEED", Conditions(hash_seed=2)),
}
"""Conditions that must not change a run. If the first one has an effect, the others are not reported, since they may
only show the same effect."""
KEPT = "state kept between runs, in a global or an attribute of its class"
CLAIMS: dict[str, tuple[Callable[[World], bool], str]] = {
    "async": (lambda world: world.asynchronous, "planned ahead"),
    "speculation": (lambda world: bool(world.speculation), "with drafts"),
}
"""Claims of a scheduler, with the worlds that test each and a phrase that describes them."""
CHANGES = "changes a run, although it returns defaults and does not set acts = True"
"""Message for a feature that does not declare its effects."""
ENOUGH = 5
"""Number of worlds needed to judge a claim."""
STATE, DRAFTS = REQUEST_COLUMNS.index("state"), STEP_COLUMNS.index("drafts")
PLANNED, END = STEP_COLUMNS.index("planned_ns"), STEP_COLUMNS.index("end_ns")


@dataclass(frozen=True)
class Report:
    """Result of the checks."""

    failures: list[str]
    """Failures, one line each."""
    notes: list[str]
    """Remarks for the author that are not failures."""
    runs: int


def check(subject: Subject, numbers: Sequence[int] = range(WORLDS)) -> Report:
    """Run the worlds with these numbers in fast mode and in reference mode, with and without invariant checks, and
    repeat them in this process and in another one."""
    return _Checks(subject, numbers).report()


class _Checks:
    def __init__(self, subject: Subject, numbers: Sequence[int]) -> None:
        self._subject = subject
        self._numbers = list(numbers)
        self._worlds: dict[int, World] = {}
        self._served: dict[int, Attempt] = {}  # completed in reference mode
        self._unsuited: list[str] = []
        self._findings = [Finding("settings", told) for told in settings_failures(subject)]
        self._findings += whole_run_findings(subject) if subject.kind == "feature" else ()
        self._findings += [Finding("determinism", told) for told in impurities(subject)]
        self._unlike: list[Finding] = []  # worlds whose outcome does not repeat
        self._runs = 0

    def report(self) -> Report:
        with closing(Elsewhere(self._subject.spec, self._numbers, OTHER)) as elsewhere:
            for number in self._numbers:
                self._check_world(number)
            others = elsewhere.attempts()
        self._runs += len(others)
        for number, here in self._served.items():
            self._repeats(number, here, others[number], "in another process")
        self._findings += self._causes() if self._unlike else self._claims()
        if any(each.check == "determinism" for each in self._findings):  # fast mode then differs too
            self._findings = [each for each in self._findings if each.check != "fast"]
        if self._numbers and len(self._unsuited) == len(self._numbers):
            self._findings.append(Finding("settings", f"no test world fits {self._subject.name}: {self._unsuited[0]}"))
        findings = self._of_claims(self._findings)
        return Report(lines(findings, self._worlds, self._subject.kind), list(self._notes()), self._runs)

    def _check_world(self, number: int) -> None:
        world = self._worlds[number] = world_of(number, self._subject)
        plain = self._run(world, "reference", check=True)
        if plain.unsuited:
            self._unsuited.append(plain.error)
        elif plain.again:
            self._served[number] = plain  # noted; no further checks
        elif plain.outcome is None:
            self._findings.append(self._broken(number, plain.error))
        else:
            self._served[number] = plain
            repeats = self._repeats(number, plain, self._run(world, "reference", seed=1), "when it is run again")
            if repeats and self._agrees(number, plain, self._run(world, "fast"), "fast mode"):
                watched = self._run(world, "fast", check=True)
                self._agrees(number, plain, watched, "fast mode with invariants checked")
                self._leaves_as_it_is(number, world, plain)

    def _leaves_as_it_is(self, number: int, world: World, plain: Attempt) -> None:
        """Check whether a feature that does not declare `acts` changes a run other than through its answers."""
        if self._subject.kind != "feature" or self._subject.cls.acts:
            return
        if any(isinstance(maker, Watched) and maker.answered for maker in world.features):
            return
        bare = self._run(replace(world, features=()), "reference")
        if told := _unlike(plain, bare, "without it"):
            self._findings.append(Finding("contract", f"{self._subject.name} {CHANGES}: {told}", number, CHANGES))

    def _run(self, world: World, mode: str, *, check: bool = False, seed: int = 0) -> Attempt:
        self._runs += 1
        return attempt(world, mode, check=check, seed=seed)

    def _broken(self, number: int, error: str, mode: str = "") -> Finding:
        if self._subject.kind in ABOUT and self._subject.name not in error:  # another policy in the world failed
            error = f"with {self._subject.name}: {error}"
        return Finding("invariants" if "AssertionError" in error else "contract", f"{mode}{error}", number)

    def _agrees(self, number: int, plain: Attempt, fast: Attempt, mode: str) -> bool:
        """Return whether fast mode and reference mode have the same outcome."""
        assert plain.outcome is not None
        if fast.outcome is None:
            self._findings.append(self._broken(number, fast.error, f"only in {mode}: "))
        elif told := difference(fast.outcome, plain.outcome):
            self._findings.append(Finding("fast", f"{mode} differs from reference mode: {told}", number, mode))
        else:
            return True
        return False

    def _repeats(self, number: int, here: Attempt, there: Attempt, elsewhere: str) -> bool:
        """Return whether two attempts at a world have the same outcome."""
        told = _unlike(here, there, elsewhere)
        if told:
            self._unlike.append(Finding("determinism", told, number, "again"))
        return not told

    def _causes(self) -> Iterator[Finding]:
        """Yield the reasons why outcomes do not repeat: run the same worlds in processes that each differ in one
        condition."""
        numbers, name = list(self._served), self._subject.name
        with ExitStack() as stack:
            base, *others = (
                stack.enter_context(closing(Elsewhere(self._subject.spec, numbers, conditions)))
                for conditions in (BASE, *(conditions for _, conditions in CAUSES.values()))
            )
            bases, *attempts = (process.attempts() for process in (base, *others))
        self._runs += len(numbers) * (1 + len(attempts))
        found: list[Finding] = []
        for (cause, (elsewhere, _)), of_cause in zip(CAUSES.items(), attempts, strict=True):
            for number in numbers:
                if told := _unlike(bases[number], of_cause[number], elsewhere):
                    found.append(Finding("determinism", f"{name} depends on {cause}: {told}", number, cause))
            if found and cause == next(iter(CAUSES)):
                break
        yield from found
        if not found:
            for finding in self._unlike:
                yield Finding(finding.check, f"{name} depends on {KEPT}: {finding.told}", finding.world, KEPT)

    def _claims(self) -> Iterator[Finding]:
        """Yield findings about claims that the worlds do not support."""
        outcomes = {n: each.outcome for n, each in self._served.items() if each.outcome is not None}
        supports = getattr(self._subject.cls, "supports", ())
        if len(outcomes) >= ENOUGH and not any(
            (each.requests[:, STATE] == State.FINISHED).any() for each in outcomes.values()
        ):
            yield Finding("contract", f"{self._subject.name}: no request was served in {len(outcomes)} worlds")
        if self._subject.kind != "scheduler":
            return
        ahead = [each.steps for n, each in outcomes.items() if self._worlds[n].asynchronous]
        if "async" in supports and len(ahead) >= ENOUGH and not any(map(_overlap, ahead)):
            told = f'supports contains "async", but in {len(ahead)} worlds no step was planned while one was in flight'
            yield Finding("settings", f"{self._subject.name}: {told}")
        drafted = [each.steps for n, each in outcomes.items() if self._worlds[n].speculation]
        if "speculation" in supports and len(drafted) >= ENOUGH and not any(np.any(s[:, DRAFTS]) for s in drafted):
            told = f'supports contains "speculation", but in {len(drafted)} worlds no draft was verified'
            yield Finding("settings", f"{self._subject.name}: {told}")

    def _of_claims(self, findings: list[Finding]) -> list[Finding]:
        """Return the findings, with those that only occur under a claim in `supports` reported as failures of that
        claim."""
        if self._subject.kind != "scheduler":
            return findings
        told = []
        for finding in findings:
            shown = [
                self._worlds[each.world] for each in findings if each.key == finding.key and each.world is not None
            ]
            for claim, (holds, how) in CLAIMS.items():
                others = [n for n in self._served if not holds(self._worlds[n])]
                if shown and all(map(holds, shown)) and len(others) >= ENOUGH:
                    said = f'supports contains "{claim}", but {how}: {finding.told}'
                    finding = replace(finding, check="settings", told=said, cause=f"{claim} {finding.key}")
                    break
            told.append(finding)
        return told

    def _notes(self) -> Iterator[str]:
        yield from misspelled(classes_beside(self._subject.cls))
        makers = [maker for world in self._worlds.values() for maker in world.features]
        if self._subject.kind == "feature" and not any(isinstance(maker, Watched) and maker.made for maker in makers):
            yield (
                f"{self._subject.name} is disabled in every test world: add settings (:KEY=VALUE), or define in_world"
            )
        again = {number: each.error for number, each in self._served.items() if each.again}
        if again:
            number = next(iter(again))
            yield (
                f"it does not work with pipelines: {again[number]} (world {number}). Skip requests with "
                "num_computed_tokens == num_tokens"
            )


def _overlap(steps: Rows) -> bool:
    """Return whether a step was planned before the previous step on its replica had ended."""
    before, after = steps[:-1], steps[1:]
    return bool(((after[:, 0] == before[:, 0]) & (after[:, PLANNED] < before[:, END])).any())


def _unlike(here: Attempt, there: Attempt, elsewhere: str) -> str:
    if here.outcome is None or there.outcome is None:
        if here.error == there.error:
            return ""
        return f"{elsewhere} {there.error or 'it is served'}, here {here.error or 'it is served'}"
    return difference(here.outcome, there.outcome, elsewhere)
