package main

import (
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

const natsPatience = 60 * time.Second

type natsQueue struct {
	connection *nats.Conn
	stream     nats.JetStreamContext
}

func openNats(address string) (queue, error) {
	connection, err := nats.Connect(address)
	if err != nil {
		return nil, err
	}
	stream, err := connection.JetStream(nats.PublishAsyncMaxPending(unconfirmedMax), nats.MaxWait(natsPatience))
	if err != nil {
		return nil, err
	}
	if err := stream.DeleteStream("bench"); err != nil && !errors.Is(err, nats.ErrStreamNotFound) {
		return nil, err
	}
	_, err = stream.AddStream(&nats.StreamConfig{
		Name: "bench", Subjects: []string{"bench"}, Storage: nats.FileStorage, Retention: nats.WorkQueuePolicy,
	})
	return natsQueue{connection, stream}, err
}

func (q natsQueue) publish(records int, body []byte) error {
	for i := 0; i < records; i++ {
		if _, err := q.stream.PublishAsync("bench", body, nats.StallWait(natsPatience)); err != nil {
			return err
		}
	}
	select {
	case <-q.stream.PublishAsyncComplete():
		return nil
	case <-time.After(natsPatience):
		return errors.New("not all publishes were confirmed within a minute")
	}
}

func (q natsQueue) drain(records, batch int) error {
	subscription, err := q.stream.PullSubscribe("bench", "workers", nats.MaxAckPending(-1))
	if err != nil {
		return err
	}
	for settled := 0; settled < records; {
		messages, err := subscription.Fetch(batch, nats.MaxWait(natsPatience))
		if err != nil {
			return err
		}
		for _, message := range messages {
			if err := message.Ack(); err != nil {
				return err
			}
		}
		settled += len(messages)
	}
	return q.connection.Flush()
}
