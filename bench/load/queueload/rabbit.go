package main

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// RabbitMQ: a durable classic queue, persistent messages, confirms. It pushes: a consumer receives up to its prefetch
// in advance and does not wait for a fetch. Settlements are not confirmed.
const rabbitPrefetchMin = 100

type rabbitQueue struct{ address, name string }

func openRabbit(address, name string) (queue, error) {
	q := rabbitQueue{address, name}
	channel, err := q.channel()
	if err != nil {
		return nil, err
	}
	if _, err := channel.QueueDelete(name, false, false, false); err != nil {
		return nil, err
	}
	_, err = channel.QueueDeclare(name, true, false, false, false, nil)
	return q, err
}

func (q rabbitQueue) channel() (*amqp.Channel, error) {
	connection, err := amqp.Dial(q.address)
	if err != nil {
		return nil, err
	}
	return connection.Channel()
}

type rabbitPublisher struct {
	channel  *amqp.Channel
	confirms chan amqp.Confirmation
	name     string
	body     []byte
	window   int
}

func (q rabbitQueue) publisher(body []byte, window int) (publisher, error) {
	channel, err := q.channel()
	if err != nil {
		return nil, err
	}
	confirms := channel.NotifyPublish(make(chan amqp.Confirmation, window))
	return rabbitPublisher{channel, confirms, q.name, body, window}, channel.Confirm(false)
}

func (p rabbitPublisher) publish(more func() bool, confirmed func(time.Time)) error {
	sent := make(chan time.Time, p.window) // confirms are in the order of the messages
	wait := func() error {
		confirm, open := <-p.confirms
		if !open || !confirm.Ack {
			return errors.New("a message was not confirmed")
		}
		confirmed(<-sent)
		return nil
	}
	for more() {
		if len(sent) == p.window {
			if err := wait(); err != nil {
				return err
			}
		}
		sent <- time.Now()
		message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: p.body}
		if err := p.channel.PublishWithContext(context.Background(), "", p.name, false, false, message); err != nil {
			return err
		}
	}
	for len(sent) > 0 {
		if err := wait(); err != nil {
			return err
		}
	}
	return nil
}

func (p rabbitPublisher) close() { p.channel.Close() }

type rabbitConsumer struct {
	channel    *amqp.Channel
	deliveries <-chan amqp.Delivery
	name       string
	batch      int
}

func (q rabbitQueue) consumer(batch int) (consumer, error) {
	channel, err := q.channel()
	if err != nil {
		return nil, err
	}
	if err := channel.Qos(max(batch*4, rabbitPrefetchMin), 0, false); err != nil {
		return nil, err
	}
	deliveries, err := channel.Consume(q.name, "", false, false, false, false, nil)
	return rabbitConsumer{channel, deliveries, q.name, batch}, err
}

func (c rabbitConsumer) take(ctx context.Context) (int, error) {
	for taken := 1; ; taken++ {
		select {
		case message := <-c.deliveries:
			if taken == c.batch {
				return taken, message.Ack(true)
			}
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// The response to a call after the settlements proves that the broker has received them.
func (c rabbitConsumer) finish(context.Context) error {
	_, err := c.channel.QueueDeclarePassive(c.name, true, false, false, false, nil)
	return err
}
