// queueload puts a queue's life on a peer: publish with confirms, then lease and settle everything, a batch at a time.
//
//	queueload redis|nats|amqp ADDRESS RECORDS SIZE BATCH
//
// It prints one JSON line. Each peer has its own file; all keep about four thousand publishes unconfirmed.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

const unconfirmedMax = 4000

// queue is what a peer must be able to do; each call returns when all records are confirmed or settled.
type queue interface {
	publish(records int, body []byte) error
	drain(records, batch int) error
}

var open = map[string]func(address string) (queue, error){
	"redis": openRedis,
	"nats":  openNats,
	"amqp":  openRabbit,
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "queueload:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 5 || open[arguments[0]] == nil {
		return fmt.Errorf("usage: queueload redis|nats|amqp ADDRESS RECORDS SIZE BATCH")
	}
	numbers := [3]int{}
	for i, text := range arguments[2:] {
		number, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		numbers[i] = number
	}
	records, size, batch := numbers[0], numbers[1], numbers[2]
	body := make([]byte, size)
	for i := range body {
		body[i] = byte('a' + i%26)
	}
	q, err := open[arguments[0]](arguments[1])
	if err != nil {
		return err
	}
	began := time.Now()
	if err := q.publish(records, body); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	published := time.Since(began)
	began = time.Now()
	if err := q.drain(records, batch); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"records":      records,
		"publish_s":    published.Seconds(),
		"drain_s":      time.Since(began).Seconds(),
		"client_cpu_s": cpuSeconds(),
	})
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}
