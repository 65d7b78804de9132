"""Call sites turn off where speculation does not pay, and on again where it does."""

from forerun.core.sites import Site, Sites


def worked(site: Site, times: int) -> Site:
    for _ in range(times):
        site.learn(20.0, probability=0.9, hit=True)
    return site


def failures_until_off(site: Site, probability: float) -> int:
    for number in range(1, 100):
        site.learn(-1.0, probability=probability, hit=False)
        if not site.on:
            return number
    raise AssertionError("never off")


def test_a_site_that_only_loses_is_off_after_its_window() -> None:
    assert failures_until_off(Site(), 0.1) == 5


def test_a_good_past_does_not_carry_a_site_whose_word_is_not_kept() -> None:
    assert failures_until_off(worked(Site(), 200), 0.99) == 3
    assert failures_until_off(worked(Site(), 200), 0.5) == 10


def test_a_hit_restores_the_word_of_a_site() -> None:
    site = worked(Site(), 5)
    for _ in range(50):
        site.learn(-1.0, probability=0.9, hit=False)
        site.learn(-1.0, probability=0.9, hit=False)
        site.learn(20.0, probability=0.9, hit=True)
    assert site.on


def test_a_site_that_is_off_lets_every_twentieth_candidate_through_and_is_on_again_by_one_gain() -> None:
    site = Site()
    failures_until_off(site, 0.9)
    assert [site.allows() for _ in range(40)] == ([False] * 19 + [True]) * 2
    states = []
    for gain, hit in ((-1.0, False), (20.0, True)):
        site.learn(gain, probability=0.9, hit=hit)
        states.append(site.on)
    assert states == [False, True]
    assert site.allows()


def test_the_least_recently_used_site_is_forgotten() -> None:
    sites = Sites(bound=2)
    first = sites.get("a")
    sites.get("b")
    assert sites.get("a") is first
    sites.get("c")
    assert set(sites.table) == {"a", "c"}


def test_how_many_sites_are_off_is_known_also_when_some_are_forgotten() -> None:
    sites = Sites(bound=2)
    for _ in range(5):
        sites.learn("a", -1.0, probability=0.9, hit=False)
    assert (len(sites.table), sites.off) == (1, 1)
    sites.learn("a", 20.0, probability=0.9, hit=True)
    assert sites.off == 0
    for _ in range(5):
        sites.learn("a", -1.0, probability=0.9, hit=False)
    sites.get("b")
    assert (len(sites.table), sites.off) == (2, 1)
    sites.get("c")
    assert (list(sites.table), sites.off) == (["b", "c"], 0)
