"""Declarations of handlers: what is accepted, and what an error says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.worker.handlers import Order, process_of

from headrace import AsyncClient, AsyncMessage, Client, Message, Undecodable
from headrace.model.errors import HeadraceError
from headrace.worker import App, Reject, Retries, Retry


def declared(app: App, function: Callable[..., Any], **options: Any) -> Any:
    app.subscriber("orders", **options)(function)
    return app.subscribers[-1]


async def handle_order(order: Order) -> None: ...


async def handle_message(message: AsyncMessage) -> None: ...


def handle_unannotated(message): ...  # type: ignore[no-untyped-def]


def handle_sync(order: Order, message: Message, client: Client, *, limit: int = 3) -> None: ...


async def handle_with_client(order: bytes, client: AsyncClient) -> None: ...


async def handle_two_values(one: int, two: int) -> None: ...


async def handle_sync_message(message: Message) -> None: ...


def test_a_decorator_returns_the_function() -> None:
    assert App("billing").subscriber("orders")(handle_order) is handle_order


def test_the_subscription_is_named_after_the_app() -> None:
    assert declared(App("billing"), handle_order).subscription == "billing"
    assert declared(App("billing"), handle_order, subscription="audit").subscription == "audit"


@pytest.mark.parametrize(
    ("function", "injected", "body"),
    [
        (handle_order, {}, "order"),
        (handle_message, {"message": AsyncMessage}, None),
        (handle_unannotated, {"message": Message}, None),
        (handle_sync, {"message": Message, "client": Client}, "order"),
        (handle_with_client, {"client": AsyncClient}, "order"),
    ],
)
def test_annotations_say_what_a_parameter_gets(
    function: Callable[..., Any], injected: dict[str, type], body: str | None
) -> None:
    arguments = declared(App("billing"), function).handler.arguments
    assert (arguments.injected, arguments.body) == (injected, body)


def test_retries_become_configs_of_the_subscription() -> None:
    subscriber = declared(
        App("billing"), handle_order, retry=Retries(limit=8, backoff="2s", jitter=0.5), filter="key = 'a'"
    )
    assert subscriber.configs == {
        "share.delivery.count.limit": "8",
        "headrace.retry.backoff.ms": "2000",
        "headrace.retry.jitter": "0.5",
        "headrace.filter": "key = 'a'",
    }


def test_the_rule_of_the_nearest_class_applies() -> None:
    later = Retry(delay="1h")
    handler = declared(App("billing"), handle_order, on={OSError: "ack", ConnectionError: later}).handler
    assert handler.action_for(ConnectionResetError()) is later
    assert handler.action_for(FileNotFoundError()) == "ack"
    assert handler.action_for(ValueError()) is None
    assert handler.action_for(Undecodable()) == "reject"


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (handle_two_values, {}, "has the parameters one and two"),
        (handle_sync_message, {}, "with AsyncMessage, not Message"),
        (handle_order, {"on": {ValueError: "drop"}}, "'drop' is not an action; use one of 'ack', 'retry', 'reject'"),
        (handle_order, {"on": {"ValueError": Reject}}, "'ValueError' is not an exception class"),
        (handle_order, {"concurrency": 0}, "at least 1"),
        (handle_order, {"process": True}, "takes an ordinary function"),
        (handle_sync, {"time_limit": "5s"}, "runs in a thread"),
        (handle_sync, {"process": True}, "runs in another process, where Message is not available"),
        (lambda order: None, {"process": True}, "function of a module"),
    ],
)
def test_a_wrong_declaration_is_rejected(function: Callable[..., Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(HeadraceError) as raised:
        declared(App("billing"), function, **options)
    assert said in raised.value.message


def test_two_handlers_cannot_share_a_subscription() -> None:
    app = App("billing")
    declared(app, handle_order)
    with pytest.raises(HeadraceError, match="another subscription"):
        declared(app, handle_message)
    declared(app, handle_message, subscription="audit")


def test_names_and_schedules_are_checked() -> None:
    app = App("billing")
    with pytest.raises(HeadraceError, match="61 \\* \\* \\* \\*"):
        app.scheduled("61 * * * *")
    app.scheduled("every 5s", name="tick")(handle_message)
    with pytest.raises(HeadraceError, match="two schedules named 'tick'"):
        app.scheduled("every 6s", name="tick")(handle_message)
    with pytest.raises(HeadraceError, match="a schedule has none"):
        app.scheduled("every 6s")(handle_order)
    with pytest.raises(HeadraceError):
        App("no/name")
    with pytest.raises(HeadraceError):
        app.subscriber("no/name")


def test_a_process_handler_is_a_function_of_a_module() -> None:
    assert declared(App("billing"), process_of, process=True, time_limit="5s").handler.time_limit_seconds == 5


def test_middleware_is_a_coroutine_function() -> None:
    with pytest.raises(HeadraceError, match="async def"):
        App("billing").middleware(lambda message, call_next: call_next(message))
