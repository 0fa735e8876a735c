package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Kafka: an idempotent producer with acks=all, and a share group with its defaults: a fetch returns whole record batches
// regardless of the requested number, and the client returns a batch at a time. Settlements are sent with the next fetch,
// whose response contains their results. (With `record_limit` a fetch returns at most the requested number; for single
// messages this is slower by two orders of magnitude.)
const (
	shareGroupResource = 32
	// An empty response must not take longer than the phase.
	fetchWait = 500 * time.Millisecond
)

type kafkaQueue struct{ address, topic string }

func openKafka(address, topic string) (queue, error) {
	q := kafkaQueue{address, topic}
	return q, q.readFromTheBeginning()
}

func (q kafkaQueue) group() string { return q.topic + "-workers" }

// By default a share group starts at the end of the topic when its first member joins.
func (q kafkaQueue) readFromTheBeginning() error {
	client, err := kgo.NewClient(kgo.SeedBrokers(q.address))
	if err != nil {
		return err
	}
	defer client.Close()
	value := "earliest"
	config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	config.Name, config.Value = "share.auto.offset.reset", &value
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = shareGroupResource, q.group()
	resource.Configs = append(resource.Configs, config)
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	request.Resources = append(request.Resources, resource)
	answer, err := request.RequestWith(context.Background(), client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(answer.Resources[0].ErrorCode)
}

type kafkaPublisher struct {
	client *kgo.Client
	body   []byte
}

// No linger: the client's default of 10 ms would dominate with a small window.
func (q kafkaQueue) publisher(body []byte, window int) (publisher, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(q.address), kgo.DefaultProduceTopic(q.topic), kgo.MaxBufferedRecords(window), kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	)
	if err != nil {
		return nil, err
	}
	return kafkaPublisher{client, body}, client.Ping(context.Background())
}

func (p kafkaPublisher) publish(more func() bool, confirmed func(time.Time)) error {
	var failed error // written by the client's callback thread, read after the flush
	for more() {
		sent := time.Now()
		p.client.Produce(context.Background(), &kgo.Record{Value: p.body}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err
				return
			}
			confirmed(sent)
		})
	}
	if err := p.client.Flush(context.Background()); err != nil {
		return err
	}
	return failed
}

func (p kafkaPublisher) close() { p.client.Close() }

type kafkaConsumer struct {
	client *kgo.Client
	batch  int
}

func (q kafkaQueue) consumer(batch int) (consumer, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(q.address), kgo.ConsumeTopics(q.topic), kgo.ShareGroup(q.group()), kgo.FetchMaxWait(fetchWait),
		kgo.ShareMaxRecords(int32(batch)), kgo.ShareAckCallback(noteRefusals),
	)
	return kafkaConsumer{client, batch}, err
}

func (c kafkaConsumer) take(ctx context.Context) (int, error) {
	fetches := c.client.PollRecords(ctx, c.batch)
	if err := fetches.Err(); err != nil {
		return 0, err
	}
	c.client.MarkAcks(kgo.AckAccept)
	return fetches.NumRecords(), nil
}

func (c kafkaConsumer) finish(ctx context.Context) error { return c.client.FlushAcks(ctx) }

func noteRefusals(_ *kgo.Client, results kgo.ShareAckResults) {
	if err := results.Error(); err != nil && !strings.Contains(err.Error(), "context canceled") {
		panic(fmt.Sprintf("a settle was refused: %v", err))
	}
}
