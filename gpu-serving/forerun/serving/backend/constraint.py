"""Decoding under a grammar: which tokens may follow, so that a text ends as one valid tool call.

The rule is applied to the scores before all other processing: a token that may not follow has none. So decoding stays
what it is (greedy, sampled, verified over drafts), with the model's distribution over the texts of the grammar.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from forerun.core.errors import CoreError
from forerun.core.grammar.automaton import DEAD, Grammar
from forerun.core.grammar.calls import call_grammar, tools_of
from forerun.serving.backend.sequences import Refused

_GRAMMARS: Final = 32
"""Kept compiled: agents ask with the same tools again and again."""

_MASKS: Final = 512
"""Kept of one grammar, a bit for each token: with 152,000 tokens 10 MB. Most of a call is written in a few states; the
others are quick to look at again."""

Array = Any


class TokenGrammar:
    """A grammar over the tokens of one model.

    Args:
        grammar: Its texts.
        tokens: Bytes of each token; empty for special ones, which no text contains.
        ends: Tokens that end an answer.
    """

    def __init__(self, grammar: Grammar, tokens: TokenTable, ends: Sequence[int]) -> None:
        self._grammar = grammar
        self._tokens = tokens
        self._ends = [one for one in ends if one < tokens.count]
        self._masks: OrderedDict[int, Array] = OrderedDict()
        self.start = grammar.start

    def after(self, state: int, token: int) -> int:
        """The state behind a token; `DEAD` behind one that may not follow, and behind the end."""
        text = self._tokens.texts[token]
        return self._grammar.walk(state, text) if text else DEAD

    def allowed(self, state: int) -> Array:
        """For each token whether it may follow."""
        bits = self._masks.pop(state, None)
        if bits is None:
            bits = np.packbits(self._made(state))
            if len(self._masks) >= _MASKS:
                self._masks.popitem(last=False)
        self._masks[state] = bits
        return np.unpackbits(bits, count=self._tokens.count).view(bool)

    def _made(self, state: int) -> Array:
        states = self._tokens.walked(state, self._grammar)
        mask = states != DEAD
        if self._grammar.complete(state):
            mask[self._ends] = True
        return mask


class TokenTable:
    """The bytes of all tokens, side by side.

    Args:
        texts: Bytes of each token; empty for special ones.
    """

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.texts = texts
        self.count = len(texts)
        lengths = np.array([len(one) for one in texts], np.int32)
        # Sorted by length, so that the walk goes on with fewer tokens at each byte.
        self._order = np.argsort(-lengths, kind="stable")
        longest = int(lengths.max(initial=0))
        self._bytes = np.zeros((longest, self.count), np.uint8)
        for place, token in enumerate(self._order):
            text = texts[token]
            self._bytes[: len(text), place] = np.frombuffer(text, np.uint8)
        self._reaching = [int((lengths > place).sum()) for place in range(longest)]

    def walked(self, state: int, grammar: Grammar) -> Array:
        """The state behind each token, after a state."""
        found = np.full(self.count, DEAD, np.int64)
        if self._reaching:
            found[: self._reaching[0]] = state
        for place, count in enumerate(self._reaching):
            before = found[:count].copy()
            for one in np.unique(before):
                if one == DEAD:
                    continue
                chosen = np.flatnonzero(before == one)
                row = np.array(grammar.row(int(one)), np.int64)
                found[chosen] = row[self._bytes[place, chosen]]
        by_token = np.empty_like(found)
        by_token[self._order] = found
        return by_token


class Grammars:
    """The grammars that were asked for lately.

    Args:
        tokens: Gives the bytes of each token; called when a grammar is first asked for.
    """

    def __init__(self, tokens: Callable[[], Sequence[bytes]]) -> None:
        self._tokens = tokens
        self._table: TokenTable | None = None
        self._known: OrderedDict[tuple[str, str, tuple[int, ...]], TokenGrammar] = OrderedDict()

    def of(self, tools: str, only: str, ends: Sequence[int]) -> TokenGrammar:
        """The grammar of one call.

        Args:
            tools: JSON list in the form of chat completions.
            only: The one tool to call; empty: any.
            ends: Tokens that end an answer.

        Raises:
            Refused: No tool can be called; the message says why.
        """
        key = (tools, only, tuple(ends))
        found = self._known.pop(key, None)
        if found is None:
            if self._table is None:
                self._table = TokenTable(self._tokens())
            try:
                found = TokenGrammar(call_grammar(tools_of(tools, only)).grammar, self._table, ends)
            except CoreError as error:
                raise Refused(str(error)) from error
            if len(self._known) >= _GRAMMARS:
                self._known.popitem(last=False)
        self._known[key] = found
        return found


class Constraint:
    """The grammar of one text, and how far the text has come.

    Args:
        grammar: See there.
    """

    def __init__(self, grammar: TokenGrammar) -> None:
        self._grammar = grammar
        self._state = grammar.start

    def masked(self, scores: Any, drafted: Sequence[int]) -> Any:
        """Scores in which what may not follow has none, behind the text so far and some drafted tokens."""
        state = self._state
        for token in drafted:
            state = DEAD if state == DEAD else self._grammar.after(state, token)
        if state == DEAD:
            return scores  # behind the end of the answer, of which nothing is read
        allowed = self._grammar.allowed(state)
        if isinstance(scores, list):
            return [score if ok else -np.inf for score, ok in zip(scores, allowed, strict=True)]
        return np.where(allowed[: len(scores)], scores, -np.inf)

    def take(self, tokens: Sequence[int]) -> None:
        """Certain tokens that follow."""
        for token in tokens:
            if self._state == DEAD:
                return
            self._state = self._grammar.after(self._state, token)
