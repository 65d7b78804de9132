"""How much capacity a pool needs: replicas, slots for speculation, and a cap on drafted tokens. Pure decisions.

`decide(history, signal, rules)` is called every second or so with what was heard of the load. It gives the new history
and the decision; nothing else is remembered, so that a run can be repeated exactly.
"""

from forerun.core.capacity.decision import decide
from forerun.core.capacity.model import Decision, History, Reason, Rules, Signal, first_history

__all__ = ["Decision", "History", "Reason", "Rules", "Signal", "decide", "first_history"]
