"""Where the test cluster has its sources, its programs and its state."""

from __future__ import annotations

from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[3]
SOURCES: Final = REPOSITORY / "scripts" / "cluster"
TOOLS: Final = REPOSITORY / ".tools" / "cluster"
"""Everything that takes long to make and may be kept: programs, images, the compiler's cache."""
PROGRAMS: Final = TOOLS / "bin"
