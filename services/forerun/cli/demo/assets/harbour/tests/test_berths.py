"""Tests of harbour.berths."""

import unittest

from harbour import berths


class TestFits(unittest.TestCase):
    subject = staticmethod(berths.fits)

    def test_case_1(self) -> None:
        self.assertEqual(True, self.subject(24, 20))

    def test_case_2(self) -> None:
        self.assertEqual(False, self.subject(23, 20))

    def test_case_3(self) -> None:
        self.assertEqual(True, self.subject(40, 20))


class TestFirstFree(unittest.TestCase):
    subject = staticmethod(berths.first_free)

    def test_case_1(self) -> None:
        self.assertEqual(2, self.subject([True, False]))

    def test_case_2(self) -> None:
        self.assertEqual(1, self.subject([False]))

    def test_case_3(self) -> None:
        self.assertEqual(0, self.subject([True]))


class TestOccupancyPercent(unittest.TestCase):
    subject = staticmethod(berths.occupancy_percent)

    def test_case_1(self) -> None:
        self.assertEqual(66, self.subject([True, True, False]))

    def test_case_2(self) -> None:
        self.assertEqual(0, self.subject([]))

    def test_case_3(self) -> None:
        self.assertEqual(100, self.subject([True]))
