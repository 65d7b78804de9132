"""Tests of harbour.crew."""

import unittest

from harbour import crew


class TestRestIsEnough(unittest.TestCase):
    subject = staticmethod(crew.rest_is_enough)

    def test_case_1(self) -> None:
        self.assertEqual(False, self.subject([15, 1]))

    def test_case_2(self) -> None:
        self.assertEqual(False, self.subject([14, 14, 14, 14, 14, 14]))

    def test_case_3(self) -> None:
        self.assertEqual(True, self.subject([8, 8]))


class TestWatchAt(unittest.TestCase):
    subject = staticmethod(crew.watch_at)

    def test_case_1(self) -> None:
        self.assertEqual(1, self.subject(0))

    def test_case_2(self) -> None:
        self.assertEqual(2, self.subject(7))

    def test_case_3(self) -> None:
        self.assertEqual(6, self.subject(23))


class TestOvertime(unittest.TestCase):
    subject = staticmethod(crew.overtime)

    def test_case_1(self) -> None:
        self.assertEqual(10, self.subject(50, 40))

    def test_case_2(self) -> None:
        self.assertEqual(0, self.subject(30, 40))

    def test_case_3(self) -> None:
        self.assertEqual(0, self.subject(40, 40))
