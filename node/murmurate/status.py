"""`murmurate status`: what one node knows of its swarm, once."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from murmurate import report, view
from murmurate.errors import ConfigError
from murmurate.values import Wrong, is_address

if TYPE_CHECKING:
    from murmurate.io.wire import Description


def run(address: str, timeout_s: float, *, as_json: bool = False) -> int:
    """Ask, and print the answer."""
    check(address)
    description = asyncio.run(ask(address, timeout_s))
    if as_json:
        from murmurate.watch import swarm

        print(json.dumps(swarm.as_json(description), indent=2, allow_nan=False))
        return 0
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=view.PLAIN_WIDTH)
    console.print(sentence(description), markup=False)
    console.print(members(description))
    return 0


def check(address: str) -> None:
    try:
        is_address(address, port_min=1)
    except Wrong as wrong:
        raise ConfigError(f"ADDRESS {address!r}: {wrong}") from None


async def ask(address: str, timeout_s: float) -> Description:
    from murmurate.io.grpc_terms import describe
    from murmurate.io.transport import Limits

    return await describe(address, timeout_s, Limits())


def sentence(description: Description) -> str:
    """Who answered, and what it trains."""
    size = sum(_product(tensor.shape) for tensor in description.tensors)
    synced = "" if description.synced else ", still joining"
    return (
        f"{description.name} at {description.address}: run {description.run!r}{synced},"
        f" {size:,} parameters, {len(description.clock):,} updates in its clock"
    )


def members(description: Description) -> Table:
    """Everyone it knows of, with the last word of each about its progress."""
    told = {progress.name: progress for progress in description.progress}
    rows = []
    for member in sorted(description.members, key=lambda member: member.name):
        known = told.get(member.name)
        row = report.empty_row(member.name) if known is None else report.node_row(known)
        rows.append({**row, "state": member.state, "address": member.address})
    return view.table(rows)


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
