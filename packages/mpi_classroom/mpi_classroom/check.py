"""What a check found, of this machine (`doctor`) or of another host (`host_checks`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: `detail` is what was found, `remedy` what to do when it is not ok."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""

    def line(self) -> str:
        """What the doctor shows: a line when it is ok, a second one with the remedy when it is not."""
        head = f"{'ok   ' if self.ok else 'FIX  '}{self.name:14} {self.detail}"
        return head if self.ok else f"{head}\n{'':19} → {self.remedy}"
