"""What a paper says, beside what is found here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SEEDS = 3
AGREES, DIFFERS, NOT_BUILT, NOT_RUN = "agrees", "differs", "not built", "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperClaim:
    """One figure, table or sentence of a paper."""

    where: str
    what: str
    paper: str
    ours: str = ""
    verdict: str = AGREES
    why: str = ""
    """Where it differs: what is wrong, in the paper or here. Else whatever a reader should know."""


@dataclass(slots=True, kw_only=True)
class PaperStudy:
    """All of one paper."""

    paper: str
    title: str
    claims: list[PaperClaim] = field(default_factory=list)
    charts: list[str] = field(default_factory=list)
    """As SVG."""
    figures: dict[str, Any] = field(default_factory=dict)
    """The numbers behind the charts."""
    bends: str = ""
    """Which of the costs of virtual time gives the curves their shape; a sentence."""

    def add(
        self,
        where: str,
        what: str,
        paper: str,
        ours: str = "",
        *,
        agrees: bool | None = None,
        verdict: str = "",
        why: str = "",
        unless: str = "",
    ) -> None:
        """`agrees`: or a `verdict` of its own. `unless`: why not, where it does not agree."""
        if agrees is not None:
            verdict = AGREES if agrees else DIFFERS
        if verdict != AGREES and unless:
            why = f"{unless}; {why}" if why else unless
        self.claims.append(
            PaperClaim(where=where, what=what, paper=paper, ours=ours, verdict=verdict, why=why)
        )

    def not_built(self, where: str, what: str, paper: str, why: str) -> None:
        self.add(where, what, paper, verdict=NOT_BUILT, why=why)

    def json(self) -> dict[str, Any]:
        return {
            "paper": self.paper,
            "title": self.title,
            "bends": self.bends,
            "claims": [asdict(claim) for claim in self.claims],
            "figures": self.figures,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much of it, and on what."""

    quick: bool = False
    seed: int = 0

    @property
    def seeds(self) -> list[int]:
        """Of tables whose figures the paper has with a spread."""
        return [self.seed + k for k in range(1 if self.quick else SEEDS)]

    text: str | None = None
    """A text file for word vectors; None: Python's language reference."""
