"""The asynchronous client on Kafka's wire protocol, used by gateways, followers, the SDK, Spark and the CLI.

    async with connect("127.0.0.1:9092") as cluster:
        async with Producer(cluster) as producer:
            receipt = await producer.publish("orders", b"hello", key=b"c-42")
        async with Consumer(cluster, ["orders"], group=GroupRules("billing")) as consumer:
            async for record in consumer:
                ...

- One `Cluster` holds metadata and connections; producers, consumers and admin calls share it.
- Everything runs on one event loop, every wait has a deadline, and every error is a `HeadraceError` that tells whether
  a retry may help.
"""
