package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis Streams: XADD in pipelines, XREADGROUP and XACK one after the other. Settlements are confirmed.
const (
	redisGroup       = "workers"
	redisPipelineMax = 1000
)

type redisQueue struct{ address, name string }

func openRedis(address, name string) (queue, error) {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	if err := client.Del(context.Background(), name).Err(); err != nil {
		return nil, err
	}
	return redisQueue{address, name}, client.XGroupCreateMkStream(context.Background(), name, redisGroup, "0").Err()
}

type redisPublisher struct {
	client   *redis.Client
	name     string
	body     []byte
	pipeline int
}

func (q redisQueue) publisher(body []byte, window int) (publisher, error) {
	client := redis.NewClient(&redis.Options{Addr: q.address, PoolSize: 1})
	return redisPublisher{client, q.name, body, min(window, redisPipelineMax)}, client.Ping(context.Background()).Err()
}

func (p redisPublisher) publish(more func() bool, confirmed func(time.Time)) error {
	for {
		pipeline := p.client.Pipeline()
		for pipeline.Len() < p.pipeline && more() {
			pipeline.XAdd(context.Background(), &redis.XAddArgs{Stream: p.name, Values: []any{"body", p.body}})
		}
		count := pipeline.Len()
		if count == 0 {
			return nil
		}
		sent := time.Now()
		if _, err := pipeline.Exec(context.Background()); err != nil {
			return err
		}
		for range count {
			confirmed(sent)
		}
	}
}

func (p redisPublisher) close() { p.client.Close() }

type redisConsumer struct {
	client *redis.Client
	name   string
	read   *redis.XReadGroupArgs
}

func (q redisQueue) consumer(batch int) (consumer, error) {
	client := redis.NewClient(&redis.Options{Addr: q.address, PoolSize: 1})
	id, err := client.ClientID(context.Background()).Result()
	read := &redis.XReadGroupArgs{
		Group: redisGroup, Consumer: time.Duration(id).String(), Streams: []string{q.name, ">"}, Count: int64(batch), Block: -1,
	}
	return redisConsumer{client, q.name, read}, err
}

func (c redisConsumer) take(context.Context) (int, error) {
	streams, err := c.client.XReadGroup(context.Background(), c.read).Result()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	ids := make([]string, 0, len(streams[0].Messages))
	for _, message := range streams[0].Messages {
		ids = append(ids, message.ID)
	}
	return len(ids), c.client.XAck(context.Background(), c.name, redisGroup, ids...).Err()
}

func (redisConsumer) finish(context.Context) error { return nil }
