"""Who looks after checkpoints that lie on this node alone (`agent.copies`), as the registry of launchers sees it."""

from __future__ import annotations

from typing import Protocol

from remuda.api.devices import LauncherReport
from remuda.api.training import Member, TrainingJob
from remuda.link.progress_board import Heartbeat


class LauncherCopies(Protocol):
    def has_checkpoints(self, job: TrainingJob, member: Member) -> bool:
        """Whether the rank's launcher may be asked for its checkpoints: what others have of them is here."""
        ...

    def started(self, job: TrainingJob, member: Member) -> None: ...

    def heard(self, job: TrainingJob, member: Member, beat: Heartbeat) -> Heartbeat:
        """The heartbeat as it is told upwards."""
        ...

    def dressed(self, job: TrainingJob, member: Member, report: LauncherReport) -> LauncherReport: ...

    def job_changed(self, old: TrainingJob | None, new: TrainingJob | None) -> None: ...

    def silence(self) -> None:
        """Nothing is copied, fetched or told any more."""
        ...

    async def close(self) -> None: ...
