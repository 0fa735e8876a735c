package main

import (
	"bytes"
	"fmt"
	"strings"
	"time"
)

// Headrace: a message is a JSON object, a batch is many of them in one request; a publish is confirmed when it is on disk.
// A pull requests up to a batch, and one request acknowledges all its messages, confirmed when that is on disk.
type headraceQueue struct {
	address, name string
	size          int
}

const (
	jsonType     = "application/json"
	batchType    = "application/vnd.headrace.messages+json"
	subscription = "workers"
	makePatience = 30 * time.Second
)

func openHeadrace(address, name string, size int) (queue, error) {
	q := headraceQueue{address, name, size}
	c, err := dial(address)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if _, err := c.expect(request("DELETE", "/topics/"+name, jsonType, nil), 200, 204, 404); err != nil {
		return nil, err
	}
	topic := request("POST", "/topics", jsonType, fmt.Appendf(nil, `{"name":%q,"partitions":4}`, name))
	for deadline := time.Now().Add(makePatience); ; time.Sleep(50 * time.Millisecond) {
		made, err := c.expect(topic, 201, 409)
		if err != nil || made.status == 201 {
			if err == nil {
				err = q.subscribe(c, subscription)
			}
			return q, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the topic of the turn before does not go: %s", made.body)
		}
	}
}

func (q headraceQueue) subscribe(c *connection, name string) error {
	body := fmt.Appendf(nil, `{"name":%q,"start":"earliest"}`, name)
	_, err := c.expect(request("POST", "/topics/"+q.name+"/subscriptions", jsonType, body), 200, 201)
	return err
}

func (q headraceQueue) publishing(batch int) ([]byte, func(answer) bool, error) {
	return q.publication(object(q.size, 0), batch), func(a answer) bool { return a.status == 201 }, nil
}

func (q headraceQueue) publication(message []byte, batch int) []byte {
	path := "/topics/" + q.name + "/messages"
	if batch == 1 {
		return request("POST", path, jsonType, message)
	}
	items := bytes.Repeat(fmt.Appendf(nil, `{"value":%s},`, message), batch)
	return request("POST", path, batchType, fmt.Appendf(nil, `{"messages":[%s]}`, items[:len(items)-1]))
}

func (q headraceQueue) take(c *connection, batch int) (int, error) {
	path := fmt.Sprintf("/subscriptions/%s/messages?max_messages=%d&wait=1s&topic=%s", subscription, batch, q.name)
	pulled, err := c.expect(request("GET", path, "", nil), 200)
	if err != nil {
		return 0, err
	}
	receipts := receiptsIn(pulled.body)
	if len(receipts) == 0 {
		return 0, nil
	}
	return len(receipts), q.ack(c, subscription, receipts)
}

func (q headraceQueue) ack(c *connection, subscription string, receipts []string) error {
	body := fmt.Appendf(nil, `{"receipts":[%s]}`, strings.Join(receipts, ","))
	if len(receipts) == 1 {
		body = fmt.Appendf(nil, `{"receipt":%s}`, receipts[0])
	}
	path := "/subscriptions/" + subscription + "/ack?topic=" + q.name
	settled, err := c.expect(request("POST", path, jsonType, body), 200)
	if err == nil && !bytes.HasPrefix(settled.body, fmt.Appendf(nil, `{"settled":%d,`, len(receipts))) {
		err = fmt.Errorf("not all were settled: %.300s", settled.body)
	}
	return err
}

// receiptsIn returns the receipts of all messages, still quoted, as they are sent back.
func receiptsIn(body []byte) []string {
	var found []string
	label := []byte(`"receipt":`)
	for {
		at := bytes.Index(body, label)
		if at < 0 {
			return found
		}
		body = body[at+len(label):]
		end := bytes.IndexByte(body[1:], '"') + 2
		found = append(found, string(body[:end]))
		body = body[end:]
	}
}

// object returns JSON of this size with its send time, and random letters, so that the load cannot be compressed.
func object(size int, at int64) []byte {
	head := fmt.Sprintf(`{"at":%d,"text":"`, at)
	text := make([]byte, max(size-len(head)-2, 0))
	for i := range text {
		text[i] = byte('a' + (i*7+i/26)%26)
	}
	return fmt.Appendf(nil, `%s%s"}`, head, text)
}

// The echo server gets the same requests as Headrace, and ignores them: the upper bound.
type echoQueue struct{ headraceQueue }

func openEcho(address, name string, size int) (queue, error) {
	return echoQueue{headraceQueue{address, name, size}}, nil
}

func (q echoQueue) take(c *connection, batch int) (int, error) {
	path := fmt.Sprintf("/subscriptions/%s/messages?max_messages=%d&wait=1s&topic=%s", subscription, batch, q.name)
	if _, err := c.expect(request("GET", path, "", nil), 201); err != nil {
		return 0, err
	}
	receipt := fmt.Sprintf(`"%040d"`, 0)
	body := fmt.Appendf(nil, `{"receipts":[%s]}`, strings.Repeat(receipt+",", batch-1)+receipt)
	_, err := c.expect(request("POST", "/subscriptions/"+subscription+"/ack", jsonType, body), 201)
	return batch, err
}
