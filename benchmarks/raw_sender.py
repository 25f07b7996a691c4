"""Sends one record when it is told to, as a program: `python raw_sender.py BROKERS TOPIC FILE
[CODEC]`. It prints a line when it is ready, waits for a line, and prints the record's offset or the
name of the error.
"""

import asyncio
import sys
from pathlib import Path

from aiokafka import AIOKafkaProducer

REQUEST_BYTES_MAX = 64 * 1024 * 1024


async def main(brokers: str, topic: str, value: bytes, codec: str | None = None) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=brokers, max_request_size=REQUEST_BYTES_MAX, compression_type=codec
    )
    await producer.start()
    try:
        print("ready", flush=True)
        sys.stdin.readline()
        print((await producer.send_and_wait(topic, value, partition=0)).offset)
    except Exception as error:  # noqa: BLE001  # the broker's refusal is the outcome
        print(type(error).__name__)
    finally:
        await producer.stop()


if __name__ == "__main__":
    brokers, topic, file, *codec = sys.argv[1:]
    asyncio.run(main(brokers, topic, Path(file).read_bytes(), *codec))
