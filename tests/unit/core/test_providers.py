"""Breakers and retry budgets: they open, probe and close, and guesses never touch the agents' own."""

from forerun.core.providers import Breaker, BreakerState, Providers, RetryBudget


def failed(breaker: Breaker, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        breaker.record(False, now)


def test_a_few_failures_among_successes_open_nothing() -> None:
    breaker = Breaker()
    for _ in range(200):
        breaker.record(True, 0.0)
        breaker.record(True, 0.0)
        breaker.record(False, 0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED


def test_it_opens_lets_a_probe_through_and_closes_by_its_success() -> None:
    breaker = Breaker()
    failed(breaker, 5)
    assert breaker.state(0.0) is BreakerState.OPEN
    assert not breaker.admits(0.9)
    assert breaker.admits(1.0)
    breaker.record(True, 1.5)
    assert breaker.state(1.5) is BreakerState.CLOSED
    assert breaker.admits(1.5)


def test_a_failed_probe_doubles_the_pause_up_to_a_bound() -> None:
    breaker, now = Breaker(), 0.0
    failed(breaker, 5)
    for pause in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        assert not breaker.admits(now + pause - 0.01)
        now += pause
        assert breaker.admits(now)
        breaker.record(False, now)


def test_failing_guesses_open_only_their_own_breaker() -> None:
    health = Providers().of("t", "search")
    failed(health.breaker(speculative=True), 50)
    assert not health.breaker(speculative=True).admits(0.0)
    assert health.breaker(speculative=False).admits(0.0)


def test_retries_are_a_tenth_of_the_calls_once_the_start_is_used_up() -> None:
    budget, retries = RetryBudget(), 0
    while budget.spend():
        retries += 1
    assert retries == 10
    for _ in range(1_000):
        budget.earn()
        retries += budget.spend()
    assert 105 <= retries <= 111


def test_the_table_forgets_the_least_recently_used_provider() -> None:
    providers = Providers(bound=1)
    first = providers.of("t", "a")
    assert providers.of("t", "a") is first
    providers.of("t", "b")
    assert providers.of("t", "a") is not first
