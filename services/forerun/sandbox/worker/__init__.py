"""Executions: slots, preemption, promotion, deadlines, results."""
