"""Writes ever larger numbers into a PerfFile, two at a time, and says each when it is saved: to be killed by a test."""

from __future__ import annotations

import sys
from pathlib import Path

from ring.perf import Estimate
from swarmd.perf_store import PerfFile

file = PerfFile(Path(sys.argv[1]))
number = int(sys.argv[2])
while True:
    number += 1
    file.write([(("uplink", (peer,)), Estimate(number, 1)) for peer in ("a", "b")])
    print(number, flush=True)
