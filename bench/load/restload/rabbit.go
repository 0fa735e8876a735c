package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
)

// RabbitMQ's management plugin: a durable classic queue and persistent messages. A request publishes one message and
// returns when it is confirmed. There are no batches. Its `get` takes and acknowledges in one request.
type rabbitQueue struct {
	name string
	size int
}

var rabbitLogin = "authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("guest:guest"))

func openRabbit(address, name string, size int) (queue, error) {
	q := rabbitQueue{name, size}
	c, err := dial(address)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if _, err := c.expect(q.request("DELETE", "/api/queues/%2F/"+name, nil), 204, 404); err != nil {
		return nil, err
	}
	_, err = c.expect(q.request("PUT", "/api/queues/%2F/"+name, []byte(`{"durable":true}`)), 201)
	return q, err
}

func (q rabbitQueue) publishing(batch int) ([]byte, func(answer) bool, error) {
	if batch != 1 {
		return nil, nil, fmt.Errorf("RabbitMQ takes one message in a request")
	}
	message := fmt.Appendf(nil, `{"properties":{"delivery_mode":2},"routing_key":%q,"payload_encoding":"string","payload":%q}`,
		q.name, object(q.size, 0))
	confirms := func(a answer) bool { return a.status == 200 && bytes.Contains(a.body, []byte(`"routed":true`)) }
	return q.request("POST", "/api/exchanges/%2F/amq.default/publish", message), confirms, nil
}

func (q rabbitQueue) take(c *connection, batch int) (int, error) {
	wanted := fmt.Appendf(nil, `{"count":%d,"ackmode":"ack_requeue_false","encoding":"auto"}`, batch)
	found, err := c.expect(q.request("POST", "/api/queues/%2F/"+q.name+"/get", wanted), 200)
	return bytes.Count(found.body, []byte(`"payload_bytes":`)), err
}

func (q rabbitQueue) request(method, path string, body []byte) []byte {
	return request(method, path, jsonType, body, rabbitLogin)
}
