"""Media post-processing: long jobs in plain threads, urgent ones first, with a stream that shows their progress.

python media_processing.py [ADDRESS]
"""

import sys
import threading
import time

from headrace import Client, Message

VIDEOS = {"holiday.mp4": 1, "archive.mp4": 0, "breaking-news.mp4": 9, "lecture.mp4": 4}
STEPS = ["decode", "scale", "encode", "thumbnail"]
# How long a job of priority 0 to 9 may be overtaken by urgent ones, in ms. This bound prevents starvation.
PATIENCE = "90000,80000,70000,60000,50000,40000,30000,20000,10000,0"


def process(client: Client) -> None:
    """The worker: process one video at a time, without leasing a second one meanwhile (prefetch=1)."""

    def transcode(message: Message) -> None:
        for number, step in enumerate(STEPS, 1):
            time.sleep(0.02)  # may take hours: the client keeps extending the lease
            progress = {"step": step, "percent": 100 * number // len(STEPS)}
            client.publish("media-progress", progress, key=message.text)

    client.work("media", "transcoder", transcode, concurrency=1, prefetch=1)


def watch(client: Client) -> None:
    """The web page: read the progress of all jobs as a stream, independently of the workers."""
    finished: list[str] = []
    with client.consume("media-progress") as stream:
        for record in stream:
            progress = record.json()
            print(f"{record.key:20} {'#' * (progress['percent'] // 10):10} {progress['step']}")
            if progress["percent"] == 100:
                finished.append(record.key or "")
                if len(finished) == len(VIDEOS):
                    break
    print("finished:", ", ".join(finished))


def main(address: str) -> None:
    with Client(address) as client:
        client.create_topic("media", partitions=1)
        client.create_topic("media-progress")
        client.create_subscription("media", "transcoder", configs={"headrace.priority.slack.ms": PATIENCE})
        for video, priority in VIDEOS.items():
            client.publish("media", video, priority=priority)
        worker = threading.Thread(target=process, args=[client])
        worker.start()
        watch(client)
        client.stop()
        worker.join()


if __name__ == "__main__":
    main(*sys.argv[1:] or ["127.0.0.1:9092"])
