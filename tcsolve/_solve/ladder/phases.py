"""The seconds of the phases of a solve, by marks that the device records."""

__all__ = ["Phases", "Untimed"]


class Phases:
    """The phases since the last report.

    Attributes
    ----------
    laps : tuple of (phase, mark, mark)
        Phases on the device; nothing waits for them before the report.
    seconds : dict of str to float
        Phases that the host has measured.
    """

    def __init__(self, ops, seconds):
        self._ops, self.laps, self.seconds = ops, (), seconds

    def mark(self):
        """Return a mark of the present moment on the device."""
        return self._ops.mark()

    def lap(self, phase, start):
        """Record that a phase lasted from a mark to now; return the mark of its end, without waiting."""
        end = self.mark()
        self.laps = (*self.laps, (phase, start, end))
        return end

    def report(self, seconds, earlier, start):
        """Add the seconds of each phase, and the 'total', to the dict `seconds`, and forget the phases.

        `earlier` has the laps before this solve; the solve began at the mark `start`.  This call waits until
        the device has finished all phases.
        """
        host, laps = self.seconds, self.laps
        self.seconds, self.laps = {}, ()
        before = self._measured(earlier)
        total = sum(host.values()) + sum(before.values())
        total += self.mark() - start
        for phases in (host, before, self._measured(laps)):
            for phase, took in phases.items():
                seconds[phase] = seconds.get(phase, 0.0) + took
        seconds["total"] = total

    def _measured(self, laps):
        seconds = {}
        for phase, start, stop in laps:
            seconds[phase] = seconds.get(phase, 0.0) + (stop - start)
        return seconds


class Untimed:
    """The phases of a solve that reports no seconds: nothing is measured.

    A mark takes the host as long as a launch, some microseconds, and a solve has eleven of them.
    """

    laps = ()

    def mark(self):
        """Return None, in place of a mark."""

    def lap(self, phase, start):
        """Do nothing."""

    def report(self, seconds, earlier, start):
        """Do nothing."""
