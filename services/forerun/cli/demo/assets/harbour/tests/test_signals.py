"""Tests of harbour.signals."""

import unittest

from harbour import signals


class TestLightsFor(unittest.TestCase):
    subject = staticmethod(signals.lights_for)

    def test_case_1(self) -> None:
        self.assertEqual(2, self.subject(50, True))

    def test_case_2(self) -> None:
        self.assertEqual(1, self.subject(49, True))

    def test_case_3(self) -> None:
        self.assertEqual(0, self.subject(60, False))


class TestSpell(unittest.TestCase):
    subject = staticmethod(signals.spell)

    def test_case_1(self) -> None:
        self.assertEqual(["alfa", "bravo"], self.subject("Ab", {"a": "alfa", "b": "bravo"}))

    def test_case_2(self) -> None:
        self.assertEqual([], self.subject("x", {}))

    def test_case_3(self) -> None:
        self.assertEqual(["bravo"], self.subject("b", {"b": "bravo"}))


class TestBlasts(unittest.TestCase):
    subject = staticmethod(signals.blasts)

    def test_case_1(self) -> None:
        self.assertEqual(2, self.subject("port"))

    def test_case_2(self) -> None:
        self.assertEqual(3, self.subject("astern"))

    def test_case_3(self) -> None:
        self.assertEqual(5, self.subject("doubt"))
