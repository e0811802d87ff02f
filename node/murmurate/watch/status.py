"""`murmurate status`: what one node knows of its swarm, once."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from murmurate.core.values.addresses import split_address
from murmurate.errors import ConfigError
from murmurate.watch import report, view

if TYPE_CHECKING:
    from murmurate.edge.net.credentials import Credentials
    from murmurate.edge.net.wire import Description


def run(address: str, timeout_s: float, credentials: Credentials, *, as_json: bool = False) -> int:
    """Ask, and print the answer."""
    from murmurate.watch import swarm

    check(address)
    description = asyncio.run(ask(address, timeout_s, credentials))
    if as_json:
        print(json.dumps(swarm.as_json(description), indent=2, allow_nan=False))
        return 0
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=view.PLAIN_WIDTH)
    console.print(sentence(description), markup=False)
    console.print(members(description))
    for text in swarm.hints(description):
        console.print(text, markup=False)
    for text in swarm.as_json(description)["warnings"]:
        console.print(f"warning: {text}", markup=False)
    return 0


def check(address: str) -> None:
    try:
        _, port = split_address(address)
        if port < 1:
            raise ValueError(f"expected host:port with a port from 1 to 65535, not {port}")
    except ValueError as wrong:
        raise ConfigError(f"ADDRESS {address!r}: {wrong}") from None


async def ask(address: str, timeout_s: float, credentials: Credentials) -> Description:
    from murmurate.edge.net.grpc_terms import describe
    from murmurate.edge.net.transport import Limits

    return await describe(address, timeout_s, Limits(), credentials)


def sentence(description: Description) -> str:
    """Who answered, and what it trains."""
    size = sum(_product(tensor.shape) for tensor in description.tensors)
    synced = "" if description.synced else ", still joining"
    held = f"{len(description.clock):,} updates in its clock"
    if description.name == "coordinator" and not len(description.clock):
        pushes = sum(told.version for told in description.progress)
        held = f"{pushes:,} pushes of those who are here in the model, rule {description.rule}"
    return (
        f"{description.name} at {description.address}: run {description.run!r}{synced},"
        f" {size:,} parameters, {held}"
    )


def members(description: Description) -> Table:
    """Everyone it knows of, with the last word of each about its progress."""
    told = {progress.name: progress for progress in description.progress}
    rows = []
    for member in sorted(description.members, key=lambda member: member.name):
        known = told.get(member.name)
        row = report.empty_row(member.name) if known is None else report.node_row(known)
        share = re.fullmatch(r"([\d.]+)% of the parameters", member.reason)
        more = {"share": float(share[1]) / 100} if share else {}
        rows.append({**row, **more, "state": member.state, "address": member.address})
    return view.table(rows)


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
