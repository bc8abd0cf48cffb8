"""`remuda give-up NODE...`: an operator says that silent nodes are gone for good, so their ranks may run elsewhere."""

from __future__ import annotations

import asyncio

import click

from remuda.cli.session import Session, with_session


@click.command("give-up")
@click.argument("names", nargs=-1, required=True, metavar="NODE...")
@with_session
def give_up(session: Session, names: tuple[str, ...]) -> None:
    """Say that silent nodes are gone for good: what ran there is replaced, although most nodes fell silent at once.

    Be sure that nothing runs there any more. It counts until the node is heard of again.
    """
    from remuda.api.kubernetes.core_v1 import Node
    from remuda.api.meta import to_time
    from remuda.api.names import ANNOTATION_GIVEN_UP
    from remuda.kube.runtime.leader import lease_micro_time

    async def run() -> None:
        async with session.connect() as cluster:
            for name in names:
                await cluster.get(Node, name)  # all of them, before any is given up
            said = {"metadata": {"annotations": {ANNOTATION_GIVEN_UP: lease_micro_time(to_time(session.clock()))}}}
            for name in names:
                await cluster.patch(Node, name, said)

    asyncio.run(run())
    click.echo(f"Given up: {', '.join(names)}. What ran there is replaced if it is still silent.")
