"""Tests of harbour.fuel."""

import unittest

from harbour import fuel


class TestLitresNeeded(unittest.TestCase):
    subject = staticmethod(fuel.litres_needed)

    def test_case_1(self) -> None:
        self.assertEqual(60, self.subject(10, 5))

    def test_case_2(self) -> None:
        self.assertEqual(9, self.subject(1, 7))

    def test_case_3(self) -> None:
        self.assertEqual(0, self.subject(0, 5))


class TestRangeMiles(unittest.TestCase):
    subject = staticmethod(fuel.range_miles)

    def test_case_1(self) -> None:
        self.assertEqual(20, self.subject(100, 4))

    def test_case_2(self) -> None:
        self.assertEqual(19, self.subject(99, 4))

    def test_case_3(self) -> None:
        self.assertEqual(0, self.subject(0, 4))


class TestCheapestPort(unittest.TestCase):
    subject = staticmethod(fuel.cheapest_port)

    def test_case_1(self) -> None:
        self.assertEqual("b", self.subject({"b": 3, "a": 4}))

    def test_case_2(self) -> None:
        self.assertEqual("a", self.subject({"b": 3, "a": 3}))

    def test_case_3(self) -> None:
        self.assertEqual("z", self.subject({"z": 1}))
