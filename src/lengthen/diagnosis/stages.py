"""Progress of a job in several stages, told as one."""

from __future__ import annotations

from collections.abc import Mapping

from lengthen.streaming import Progress


class Stages:
    """Shares one progress between stages by their sizes, in order. Each stage may count in units of its own."""

    def __init__(self, progress: Progress | None, sizes: Mapping[str, int]) -> None:
        self._progress, self._sizes = progress, dict(sizes)
        self._total = sum(self._sizes.values())

    def of(self, name: str) -> Progress | None:
        """What a stage tells its own progress to."""
        tell, total, size = self._progress, self._total, self._sizes[name]
        if tell is None:
            return None
        names = list(self._sizes)
        before = sum(self._sizes[n] for n in names[: names.index(name)])
        return lambda done, todo: tell(before + size * done // todo, total)

    def finish(self) -> None:
        """Tells that all is done, stages that were not needed too."""
        if self._progress is not None:
            self._progress(self._total, self._total)
