"""Tests of harbour.queueing."""

import unittest

from harbour import queueing


class TestShortestLane(unittest.TestCase):
    subject = staticmethod(queueing.shortest_lane)

    def test_case_1(self) -> None:
        self.assertEqual(1, self.subject([3, 1, 1]))

    def test_case_2(self) -> None:
        self.assertEqual(0, self.subject([0]))

    def test_case_3(self) -> None:
        self.assertEqual(0, self.subject([2, 5]))


class TestMinutesToLoad(unittest.TestCase):
    subject = staticmethod(queueing.minutes_to_load)

    def test_case_1(self) -> None:
        self.assertEqual(3, self.subject(10, 2))

    def test_case_2(self) -> None:
        self.assertEqual(2, self.subject(9, 4))

    def test_case_3(self) -> None:
        self.assertEqual(1, self.subject(12, 6))


class TestPriorityFirst(unittest.TestCase):
    subject = staticmethod(queueing.priority_first)

    def test_case_1(self) -> None:
        self.assertEqual(["c", "a", "b"], self.subject(["a", "b", "c"], {"c"}))

    def test_case_2(self) -> None:
        self.assertEqual(["a"], self.subject(["a"], set()))

    def test_case_3(self) -> None:
        self.assertEqual(["b", "a"], self.subject(["b", "a"], {"a", "b"}))
