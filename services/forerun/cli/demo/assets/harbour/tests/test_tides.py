"""Tests of harbour.tides."""

import unittest

from harbour import tides


class TestDepthOverSill(unittest.TestCase):
    subject = staticmethod(tides.depth_over_sill)

    def test_case_1(self) -> None:
        self.assertEqual(120, self.subject(300))

    def test_case_2(self) -> None:
        self.assertEqual(0, self.subject(100))

    def test_case_3(self) -> None:
        self.assertEqual(0, self.subject(180))


class TestMayEnter(unittest.TestCase):
    subject = staticmethod(tides.may_enter)

    def test_case_1(self) -> None:
        self.assertEqual(True, self.subject(400, 190))

    def test_case_2(self) -> None:
        self.assertEqual(False, self.subject(400, 200))

    def test_case_3(self) -> None:
        self.assertEqual(False, self.subject(400, 191))


class TestNextHigh(unittest.TestCase):
    subject = staticmethod(tides.next_high)

    def test_case_1(self) -> None:
        self.assertEqual(845, self.subject([100, 845], 845))

    def test_case_2(self) -> None:
        self.assertEqual(1540, self.subject([100, 845], 846))

    def test_case_3(self) -> None:
        self.assertEqual(100, self.subject([845, 100], 0))
