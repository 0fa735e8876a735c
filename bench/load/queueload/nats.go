package main

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// NATS JetStream: a work queue in files, asynchronous publishes, pulls one batch after the other. Settlements are
// not confirmed.
const natsPatience = 60 * time.Second

type natsQueue struct{ address, name string }

func openNats(address, name string) (queue, error) {
	q := natsQueue{address, name}
	connection, stream, err := q.connect(1)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	if err := stream.DeleteStream(name); err != nil && !errors.Is(err, nats.ErrStreamNotFound) {
		return nil, err
	}
	_, err = stream.AddStream(&nats.StreamConfig{
		Name: name, Subjects: []string{name}, Storage: nats.FileStorage, Retention: nats.WorkQueuePolicy,
	})
	if err != nil {
		return nil, err
	}
	_, err = stream.AddConsumer(name, &nats.ConsumerConfig{
		Durable: "workers", AckPolicy: nats.AckExplicitPolicy, MaxAckPending: -1, FilterSubject: name,
	})
	return q, err
}

func (q natsQueue) connect(window int) (*nats.Conn, nats.JetStreamContext, error) {
	connection, err := nats.Connect(q.address)
	if err != nil {
		return nil, nil, err
	}
	stream, err := connection.JetStream(nats.PublishAsyncMaxPending(window), nats.MaxWait(natsPatience))
	return connection, stream, err
}

type natsPublisher struct {
	connection *nats.Conn
	stream     nats.JetStreamContext
	name       string
	body       []byte
	window     int
}

func (q natsQueue) publisher(body []byte, window int) (publisher, error) {
	connection, stream, err := q.connect(window)
	return natsPublisher{connection, stream, q.name, body, window}, err
}

type natsSent struct {
	at     time.Time
	future nats.PubAckFuture
}

func (p natsPublisher) publish(more func() bool, confirmed func(time.Time)) error {
	sent := make(chan natsSent, p.window)
	wait := func() error {
		oldest := <-sent
		select {
		case <-oldest.future.Ok():
			confirmed(oldest.at)
			return nil
		case err := <-oldest.future.Err():
			return err
		case <-time.After(natsPatience):
			return errors.New("a publish was not confirmed within a minute")
		}
	}
	for more() {
		if len(sent) == p.window {
			if err := wait(); err != nil {
				return err
			}
		}
		at := time.Now()
		future, err := p.stream.PublishAsync(p.name, p.body, nats.StallWait(natsPatience))
		if err != nil {
			return err
		}
		sent <- natsSent{at, future}
	}
	for len(sent) > 0 {
		if err := wait(); err != nil {
			return err
		}
	}
	return nil
}

func (p natsPublisher) close() { p.connection.Close() }

type natsConsumer struct {
	connection   *nats.Conn
	subscription *nats.Subscription
	batch        int
}

func (q natsQueue) consumer(batch int) (consumer, error) {
	connection, stream, err := q.connect(1)
	if err != nil {
		return nil, err
	}
	subscription, err := stream.PullSubscribe(q.name, "workers", nats.Bind(q.name, "workers"))
	return natsConsumer{connection, subscription, batch}, err
}

func (c natsConsumer) take(ctx context.Context) (int, error) {
	messages, err := c.subscription.Fetch(c.batch, nats.Context(ctx))
	if err != nil {
		return 0, err
	}
	for _, message := range messages {
		if err := message.Ack(); err != nil {
			return 0, err
		}
	}
	return len(messages), nil
}

func (c natsConsumer) finish(ctx context.Context) error { return c.connection.FlushWithContext(ctx) }
