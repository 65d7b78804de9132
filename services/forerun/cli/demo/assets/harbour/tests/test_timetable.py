"""Tests of harbour.timetable."""

import unittest

from harbour import timetable


class TestClock(unittest.TestCase):
    subject = staticmethod(timetable.clock)

    def test_case_1(self) -> None:
        self.assertEqual("01:00", self.subject(1500))

    def test_case_2(self) -> None:
        self.assertEqual("01:15", self.subject(75))

    def test_case_3(self) -> None:
        self.assertEqual("00:00", self.subject(0))


class TestMissedConnections(unittest.TestCase):
    subject = staticmethod(timetable.missed_connections)

    def test_case_1(self) -> None:
        self.assertEqual(1, self.subject(100, [105, 110, 120], 10))

    def test_case_2(self) -> None:
        self.assertEqual(0, self.subject(100, [110], 10))

    def test_case_3(self) -> None:
        self.assertEqual(0, self.subject(0, [], 5))


class TestMeanDelay(unittest.TestCase):
    subject = staticmethod(timetable.mean_delay)

    def test_case_1(self) -> None:
        self.assertEqual(10, self.subject([10, 0, -5]))

    def test_case_2(self) -> None:
        self.assertEqual(6, self.subject([4, 8]))

    def test_case_3(self) -> None:
        self.assertEqual(0, self.subject([]))
