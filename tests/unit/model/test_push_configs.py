"""The settings of a webhook: which addresses make sense, and that a secret is not shown."""

from __future__ import annotations

import pytest

from headrace.model.errors import InvalidConfig
from headrace.model.subscription_configs import SUBSCRIPTION_SETTINGS, SubscriptionConfig

URL = "headrace.push.url"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://receiver.test/",
        "https://receiver.test:8443/a/b?c=d%20e",
        "http://127.0.0.1:9/",
        "https://[2001:db8::1]/hook",
        "HTTPS://receiver.test",
        "http://receiver.test./",
        "http://my_service-1.internal:8080/",
        "http://[fe80::1%25eth0]/",
    ],
)
def test_an_address_is_one_of_the_web(url: str) -> None:
    assert SubscriptionConfig.build({URL: url}).headrace_push_url == url


@pytest.mark.parametrize(
    "url",
    [
        "receiver.test",
        "//receiver.test/",
        "ftp://receiver.test/",
        "file:///etc/passwd",
        "http://",
        "http:///path",
        "http://user@receiver.test/",
        "http://user:password@receiver.test/",
        "http://:@receiver.test/",
        "http://receiver.test:0x50/",
        "http://receiver.test:99999/",
        "http://receiver.test/a b",
        "http://receiver.test/\r\nx",
        "http://receiver.test\\@127.0.0.1/",
        "http://[::1/",
        "http://grün.test/",
        "http://a..b/",
        "http://.a/",
        "http://a../",
        "http://./",
        f"http://{'a' * 64}.test/",
        f"http://{'a.' * 127}test/",
        "http://a%00b/",
        "http://-a.test/",
        "http://a:0/",
        "http://a,b/",
        "http://[v1.x]/",
        "http://[127.0.0.1]/",
    ],
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig, match=r"headrace\.push\.url"):
        SubscriptionConfig.build({URL: url})


def test_a_start_position_by_duration_is_checked_when_it_is_set() -> None:
    SubscriptionConfig.build({"share.auto.offset.reset": "by_duration:PT1H"})
    with pytest.raises(InvalidConfig, match="ISO 8601"):
        SubscriptionConfig.build({"share.auto.offset.reset": "by_duration:Pizza"})


def test_a_secret_is_neither_in_errors_nor_in_what_is_printed() -> None:
    config = SubscriptionConfig.build({"headrace.push.secret": "hush"})
    assert config.headrace_push_secret == "hush"
    assert "hush" not in repr(config)
    setting = SUBSCRIPTION_SETTINGS["headrace.push.secret"]
    assert setting.is_secret
    assert not SUBSCRIPTION_SETTINGS[URL].is_secret
    with pytest.raises(InvalidConfig) as refused:
        type(setting)(name=setting.name, type=setting.type, default="", doc="", check=lambda _: "must be longer").parse(
            "hush"
        )
    assert "hush" not in str(refused.value)
