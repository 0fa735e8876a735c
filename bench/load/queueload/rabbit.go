package main

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"
)

type rabbitQueue struct{ connection *amqp.Connection }

func openRabbit(address string) (queue, error) {
	connection, err := amqp.Dial(address)
	if err != nil {
		return nil, err
	}
	channel, err := connection.Channel()
	if err != nil {
		return nil, err
	}
	if _, err := channel.QueueDelete("bench", false, false, false); err != nil {
		return nil, err
	}
	_, err = channel.QueueDeclare("bench", true, false, false, false, nil)
	return rabbitQueue{connection}, err
}

func (q rabbitQueue) publish(records int, body []byte) error {
	channel, err := q.connection.Channel()
	if err != nil {
		return err
	}
	if err := channel.Confirm(false); err != nil {
		return err
	}
	confirms := channel.NotifyPublish(make(chan amqp.Confirmation, unconfirmedMax))
	for sent, confirmed := 0, 0; confirmed < records; {
		if sent < records && sent-confirmed < unconfirmedMax {
			message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body}
			if err := channel.PublishWithContext(context.Background(), "", "bench", false, false, message); err != nil {
				return err
			}
			sent++
			continue
		}
		<-confirms
		confirmed++
	}
	return channel.Close()
}

func (q rabbitQueue) drain(records, batch int) error {
	channel, err := q.connection.Channel()
	if err != nil {
		return err
	}
	if err := channel.Qos(max(batch*4, 100), 0, false); err != nil {
		return err
	}
	deliveries, err := channel.Consume("bench", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for settled := 1; settled <= records; settled++ {
		message := <-deliveries
		if settled%batch == 0 || settled == records {
			if err := message.Ack(true); err != nil {
				return err
			}
		}
	}
	// Settling is one way; an answered call behind it says that the broker has seen it all.
	_, err = channel.QueueInspect("bench")
	return err
}
