package main

import (
	"context"

	"github.com/redis/go-redis/v9"
)

const pipelineSize = 1000

type redisQueue struct{ client *redis.Client }

func openRedis(address string) (queue, error) {
	client := redis.NewClient(&redis.Options{Addr: address})
	if err := client.Del(context.Background(), "bench").Err(); err != nil {
		return nil, err
	}
	return redisQueue{client}, client.XGroupCreateMkStream(context.Background(), "bench", "workers", "0").Err()
}

func (q redisQueue) publish(records int, body []byte) error {
	for sent := 0; sent < records; {
		pipeline := q.client.Pipeline()
		for ; pipeline.Len() < pipelineSize && sent < records; sent++ {
			pipeline.XAdd(context.Background(), &redis.XAddArgs{Stream: "bench", Values: []any{"body", body}})
		}
		if _, err := pipeline.Exec(context.Background()); err != nil {
			return err
		}
	}
	return nil
}

func (q redisQueue) drain(records, batch int) error {
	read := &redis.XReadGroupArgs{Group: "workers", Consumer: "one", Streams: []string{"bench", ">"}, Count: int64(batch)}
	for settled := 0; settled < records; {
		streams, err := q.client.XReadGroup(context.Background(), read).Result()
		if err != nil {
			return err
		}
		ids := make([]string, 0, batch)
		for _, message := range streams[0].Messages {
			ids = append(ids, message.ID)
		}
		if err := q.client.XAck(context.Background(), "bench", "workers", ids...).Err(); err != nil {
			return err
		}
		settled += len(ids)
	}
	return nil
}
