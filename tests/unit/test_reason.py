"""Of all that a server wrote before it went, one line is shown."""

import pytest

from runfold.local.reason import reason_in

TRACE = "        at kafka.network.SocketServer.enableRequestProcessing(SocketServer.scala:202)"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], ""),
        (["one", "two", ""], "two"),
        (
            [
                (
                    "2026-11-21T16:12:52,200 ERROR BrokerServer: Fatal error during broker startup."
                    " Prepare to shutdown"
                ),
                "java.lang.RuntimeException: Unable to start acceptor for PLAINTEXT",
                TRACE,
                (
                    "Caused by: org.apache.kafka.common.KafkaException: Socket server failed to bind to"
                    " 127.0.0.1:1"
                ),
                TRACE,
                "Caused by: java.net.BindException: Address already in use",
            ],
            "org.apache.kafka.common.KafkaException: Socket server failed to bind to 127.0.0.1:1",
        ),
        (
            [
                "2026-11-21T16:12:58,223 ERROR Kafka$: Exiting Kafka due to fatal exception",
                "java.lang.RuntimeException: Error: node ID not found in /data/kafka",
                TRACE,
            ],
            "java.lang.RuntimeException: Error: node ID not found in /data/kafka",
        ),
        (
            ["Error occurred during initialization of VM", "Could not reserve enough space for object heap"],
            "Could not reserve enough space for object heap",
        ),
        (
            [
                '{"s":"I", "msg":"starting"}',
                '{"s":"E", "msg":"DBException in initAndListen", "attr":{"error":"Location: no such path"}}',
                '{"s":"F", "msg":"aborting"}',
                '{"s":"I", "msg":"Shutting down","attr":{"exitCode":48}}',
            ],
            "DBException in initAndListen: Location: no such path",
        ),
        (
            ['{"s":"E", "msg":"WiredTiger error message", "attr":{"message":{"error_str":"corruption"}}}'],
            "WiredTiger error message: corruption",
        ),
        (['{"s":"F", "msg":"x", "attr":{"error":{"code":2,"errmsg":"too small"}}}'], "x: too small"),
        (["warning: a", "error: RUNFOLD_PORT: no", "b"], "error: RUNFOLD_PORT: no"),
        (["Traceback (most recent call last):", "  File", "ValueError: no", ""], "ValueError: no"),
    ],
)
def test_the_line_with_the_reason_is_found(lines: list[str], reason: str):
    assert reason_in(lines) == reason
