"""`remuda backup` and `remuda restore`: a state directory as one file."""

from __future__ import annotations

from pathlib import Path

import click

from remuda.cli.session import Session, with_session


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@with_session
def backup(session: Session, file: Path) -> None:
    """Write the cluster's state to FILE: API objects, certificates and token. The cluster may be running or not.

    The file holds secrets, so only its owner can read it. Logs and checkpoints are not included.
    """
    from remuda.runtime.backup import make_backup

    session.need_embedded("backup")
    manifest = make_backup(session.state, file, session.clock())
    size = file.stat().st_size
    click.echo(f"{file}: {size} bytes, state format {manifest.format} of Remuda {manifest.remuda}.")
    click.echo(f"Restore it with:  remuda restore {file} --state DIR")


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@with_session
def restore(session: Session, file: Path) -> None:
    """Make a state directory from a backup. The directory must not hold a cluster yet. Backups of a newer Remuda are refused."""
    from remuda.runtime.backup import restore_backup

    session.need_embedded("restore")
    manifest = restore_backup(file, session.state)
    click.echo(
        f"{session.state.path} is restored from {file} (Remuda {manifest.remuda}). Start it with `{session.command_line('up')}`."
    )
