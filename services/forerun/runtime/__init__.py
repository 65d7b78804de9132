"""The chassis that every Forerun process shares: errors, time, ids, network, bus, life cycle, settings, telemetry."""
