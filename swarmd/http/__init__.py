"""HTTP for programs on this machine: plans and telemetry for outside tools."""
