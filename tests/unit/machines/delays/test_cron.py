"""The next time of a cron expression agrees with a search minute by minute."""

from __future__ import annotations

from calendar import isleap, monthrange
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.machines.delays import cron
from headrace.machines.delays import due_time as schedule
from headrace.machines.delays.cron import Cron, InvalidCron
from headrace.machines.delays.due_time import InvalidRepeat, parse_repeat
from headrace.model.durations import TIME_MS_MAX

MINUTE_MS = 60_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def text_of(time_ms: int | None) -> str:
    assert time_ms is not None
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("* * * * *", "2027-01-01 00:00", "2027-01-01 00:01"),
        ("*/15 * * * *", "2027-01-01 00:15", "2027-01-01 00:30"),
        ("0 9 * * mon-fri", "2027-01-01 10:00", "2027-01-04 09:00"),
        ("0 0 29 2 *", "2027-01-01 00:00", "2028-02-29 00:00"),
        ("0 0 29 2 *", "2096-03-01 00:00", "2104-02-29 00:00"),
        ("30 6 1 * sun", "2027-01-01 07:00", "2027-01-03 06:30"),
        ("30 6 1 * 7", "2027-01-31 07:00", "2027-02-01 06:30"),
        ("5,10-12/2 3 * jan,DEC *", "2027-01-31 03:10", "2027-01-31 03:12"),
        ("0 12 31 * *", "2027-01-31 12:00", "2027-03-31 12:00"),
        ("10/20 * * * *", "2027-01-01 00:00", "2027-01-01 00:10"),
        ("59 23 31 12 *", "2027-12-31 23:59", "2028-12-31 23:59"),
        ("@hourly", "2027-01-01 00:00", "2027-01-01 01:00"),
        ("@daily", "2027-01-01 00:00", "2027-01-02 00:00"),
        ("@weekly", "2027-01-01 00:00", "2027-01-03 00:00"),
        ("@monthly", "2027-01-01 00:00", "2027-02-01 00:00"),
        ("@yearly", "2027-01-01 00:00", "2028-01-01 00:00"),
    ],
)
def test_the_next_time_is_found(text: str, after: str, expected: str) -> None:
    assert text_of(Cron(text).next_ms(ms(after))) == expected


def test_a_time_within_a_minute_is_before_the_next_one() -> None:
    assert Cron("* * * * *").next_ms(MINUTE_MS - 1) == MINUTE_MS
    assert Cron("* * * * *").next_ms(MINUTE_MS) == 2 * MINUTE_MS


def test_time_ends_with_the_year_9999() -> None:
    assert Cron("0 0 1 1 *").next_ms(ms("9999-01-01 00:00")) is None
    assert Cron("* * * * *").next_ms(TIME_MS_MAX) is None
    assert Cron("* * * * *").next_ms(TIME_MS_MAX * 5) is None


@pytest.mark.parametrize(
    "text",
    ["", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *", "* * * * 8",
     "5-1 * * * *", "*/0 * * * *", "*-5 * * * *", "1,, * * * *", "mon * * * *", "* * * feb-jan *", "a * * * *",
     "0 0 31 2 *", "0 0 30 2 *", "@never", "1/ * * * *", "-1 * * * *", "* * * * mond", "99999999999999999 * * * *",
     "00000000099 * * * *", "0" * 5000 + " * * * *"],
)  # fmt: skip
def test_an_invalid_cron_expression_is_rejected(text: str) -> None:
    with pytest.raises(InvalidCron) as rejected:
        Cron(text)
    assert rejected.value.message


def fields(lowest: int, highest: int) -> st.SearchStrategy[str]:
    number = st.integers(lowest, highest)
    spread = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    stepped = st.tuples(st.one_of(st.just("*"), spread), st.integers(1, highest)).map(
        lambda pair: f"{pair[0]}/{pair[1]}"
    )
    item = st.one_of(number.map(str), spread, stepped)
    return st.one_of(st.just("*"), st.lists(item, min_size=1, max_size=3).map(",".join))


@cache
def naive_values(text: str, lowest: int, highest: int) -> set[int]:
    found = set()
    for item in text.split(","):
        spread, _, step = item.partition("/")
        first, _, last = spread.partition("-")
        start, end = (lowest, highest) if spread == "*" else (int(first), int(last or first))
        found |= {value for value in range(start, end + 1) if (value - start) % int(step or 1) == 0}
    return found


def naive_match(time: datetime, text: str) -> bool:
    minute, hour, day, month, weekday = text.split()
    days = time.day in naive_values(day, 1, 31)
    weekdays = time.isoweekday() % 7 in {value % 7 for value in naive_values(weekday, 0, 7)}
    starred = day[0] == "*" or weekday[0] == "*"
    return (
        time.minute in naive_values(minute, 0, 59)
        and time.hour in naive_values(hour, 0, 23)
        and time.month in naive_values(month, 1, 12)
        and (days and weekdays if starred else days or weekdays)
    )


@given(
    text=st.tuples(fields(0, 59), fields(0, 23), fields(1, 31), fields(1, 12), fields(0, 7)).map(" ".join),
    start=st.integers(ms("1999-12-20 00:00") // MINUTE_MS, ms("2028-03-05 00:00") // MINUTE_MS),
)
def test_the_next_time_is_the_first_matching_minute(text: str, start: int) -> None:
    try:
        found = Cron(text).next_ms(start * MINUTE_MS)
    except InvalidCron:
        _, _, day, month, _ = text.split()
        longest = max(monthrange(2028, one)[1] for one in naive_values(month, 1, 12))
        assert min(naive_values(day, 1, 31)) > longest
        return
    assert found is not None
    time = datetime.fromtimestamp(start * 60, UTC)
    for _ in range(3000):  # two days; what comes later is only looked at for itself
        time += timedelta(minutes=1)
        if naive_match(time, text):
            assert text_of(found) == time.strftime("%Y-%m-%d %H:%M")
            return
    assert found > time.timestamp() * 1000
    assert naive_match(datetime.fromtimestamp(found / 1000, UTC), text)


@given(st.integers(100, 10**9), st.integers(0, 10**12), st.integers(0, 10**12))
def test_an_interval_keeps_its_phase_and_skips_missed_times(interval_ms: int, due_ms: int, now_ms: int) -> None:
    found = parse_repeat(f"every {interval_ms}ms").next_ms(due_ms, now_ms)
    assert found is not None
    assert (found - due_ms) % interval_ms == 0
    assert found > max(due_ms, now_ms)
    assert found - interval_ms <= max(due_ms, now_ms)


def test_a_repetition_is_every_or_cron() -> None:
    assert parse_repeat("every 10s").next_ms(1000, 1005) == 11_000
    assert parse_repeat("@every PT10S").next_ms(1000, 1005) == 11_000
    assert parse_repeat("*/2 * * * *").next_ms(0, 3 * MINUTE_MS) == 4 * MINUTE_MS
    for text in ("", "every", "every day", "every 50ms", "every 0s", "10s", "sometimes now and then"):
        with pytest.raises(InvalidRepeat):
            parse_repeat(text)


@given(st.text(max_size=30))
def test_every_text_is_either_parsed_or_rejected(text: str) -> None:
    with suppress(InvalidRepeat):
        parse_repeat(text).next_ms(0, 0)


def test_a_long_expression_is_rejected_before_parsing_and_not_echoed(monkeypatch: pytest.MonkeyPatch) -> None:
    # 16 MB of `*,*,...` kept the event loop busy for 12 s.
    monkeypatch.setattr(schedule, "Cron", lambda _text: pytest.fail("it was parsed"))
    for text in ("*," * 1000 + "* * * * *", "every " + "1s" * 1000):
        with pytest.raises(InvalidRepeat, match="longer than 256 characters") as rejected:
            parse_repeat(text)
        assert len(rejected.value.message) < 300


def test_the_rarest_day_is_found_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    # Day by day, 9,000 such schedules in one batch kept the event loop busy for 2 s.
    years = list[int]()

    def counted(year: int) -> bool:
        years.append(year)
        return isleap(year)

    monkeypatch.setattr(cron, "isleap", counted)
    assert text_of(Cron("0 0 29 2 */7").next_ms(ms("2088-03-01 00:00"))) == "2128-02-29 00:00"
    assert years == list(range(2089, 2129))


def test_a_schedule_is_parsed_once() -> None:
    assert parse_repeat("1 2 3 4 5") is parse_repeat("1 2 3 4 5")
