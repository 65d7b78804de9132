"""Tests of harbour.weather."""

import unittest

from harbour import weather


class TestBeaufort(unittest.TestCase):
    subject = staticmethod(weather.beaufort)

    def test_case_1(self) -> None:
        self.assertEqual(0, self.subject(0))

    def test_case_2(self) -> None:
        self.assertEqual(2, self.subject(4))

    def test_case_3(self) -> None:
        self.assertEqual(8, self.subject(34))


class TestCrossingAllowed(unittest.TestCase):
    subject = staticmethod(weather.crossing_allowed)

    def test_case_1(self) -> None:
        self.assertEqual(False, self.subject(8, 31))

    def test_case_2(self) -> None:
        self.assertEqual(True, self.subject(8, 30))

    def test_case_3(self) -> None:
        self.assertEqual(False, self.subject(9, 10))


class TestTrend(unittest.TestCase):
    subject = staticmethod(weather.trend)

    def test_case_1(self) -> None:
        self.assertEqual(-1, self.subject([5, 9, 7]))

    def test_case_2(self) -> None:
        self.assertEqual(1, self.subject([1, 2]))

    def test_case_3(self) -> None:
        self.assertEqual(0, self.subject([3, 3]))
