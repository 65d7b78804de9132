"""Tests of harbour.manifest."""

import unittest

from harbour import manifest


class TestTotalWeight(unittest.TestCase):
    subject = staticmethod(manifest.total_weight)

    def test_case_1(self) -> None:
        self.assertEqual(230, self.subject([(2, 100), (3, 10)]))

    def test_case_2(self) -> None:
        self.assertEqual(0, self.subject([]))

    def test_case_3(self) -> None:
        self.assertEqual(7, self.subject([(1, 7)]))


class TestDuplicatePlates(unittest.TestCase):
    subject = staticmethod(manifest.duplicate_plates)

    def test_case_1(self) -> None:
        self.assertEqual(["b"], self.subject(["b", "a", "b"]))

    def test_case_2(self) -> None:
        self.assertEqual(["c"], self.subject(["c", "c", "c", "a"]))

    def test_case_3(self) -> None:
        self.assertEqual([], self.subject([]))


class TestDeckOrder(unittest.TestCase):
    subject = staticmethod(manifest.deck_order)

    def test_case_1(self) -> None:
        self.assertEqual([1, 2, 0], self.subject([3, 9, 9]))

    def test_case_2(self) -> None:
        self.assertEqual([0], self.subject([5]))

    def test_case_3(self) -> None:
        self.assertEqual([1, 0], self.subject([1, 2]))
