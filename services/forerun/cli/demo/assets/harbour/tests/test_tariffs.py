"""Tests of harbour.tariffs."""

import unittest

from harbour import tariffs


class TestHarbourDues(unittest.TestCase):
    subject = staticmethod(tariffs.harbour_dues)

    def test_case_1(self) -> None:
        self.assertEqual(180, self.subject(20, 1))

    def test_case_2(self) -> None:
        self.assertEqual(420, self.subject(20, 3))

    def test_case_3(self) -> None:
        self.assertEqual(0, self.subject(20, 0))


class TestWeekendSurcharge(unittest.TestCase):
    subject = staticmethod(tariffs.weekend_surcharge)

    def test_case_1(self) -> None:
        self.assertEqual(220, self.subject(5, 200))

    def test_case_2(self) -> None:
        self.assertEqual(220, self.subject(6, 200))

    def test_case_3(self) -> None:
        self.assertEqual(200, self.subject(4, 200))


class TestResidentDiscount(unittest.TestCase):
    subject = staticmethod(tariffs.resident_discount)

    def test_case_1(self) -> None:
        self.assertEqual(80, self.subject(100, True))

    def test_case_2(self) -> None:
        self.assertEqual(100, self.subject(100, False))

    def test_case_3(self) -> None:
        self.assertEqual(5, self.subject(7, True))
