// queueload puts load on a queue of a peer: publish with confirms, then lease and settle in batches.
//
//	queueload PROTOCOL ADDRESS QUEUE SIZE
//
// It starts with an empty queue, executes the commands on its standard input, and responds to each with one line of JSON,
// so that the harness can read the server's CPU time between them:
//
//	publish PUBLISHERS WINDOW COUNT SECONDS   at most WINDOW unconfirmed per publisher; ends after COUNT messages or SECONDS
//	join CONSUMERS BATCH                      every consumer leases and settles a batch, then waits
//	drain SECONDS                             all consumers lease and settle until few messages are left or the time is up
//	thin COUNT                                settle nine of ten of the next COUNT messages; Headrace only
//
// Each protocol has its own file, which describes its client and when a message counts as settled.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// queue is the interface of a protocol. Each publisher and each consumer has its own connection.
type queue interface {
	publisher(body []byte, window int) (publisher, error)
	consumer(batch int) (consumer, error)
}

var open = map[string]func(address, name string) (queue, error){
	"redis": openRedis,
	"nats":  openNats,
	"amqp":  openRabbit,
	"kafka": openKafka,

	"headrace":          openHeadrace(asking),
	"headrace-prefetch": openHeadrace(prefetch),
	"headrace-gather":   openHeadrace(gather),
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "queueload:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 4 || open[arguments[0]] == nil {
		return fmt.Errorf("usage: queueload PROTOCOL ADDRESS QUEUE SIZE")
	}
	size, err := strconv.Atoi(arguments[3])
	if err != nil {
		return err
	}
	q, err := open[arguments[0]](arguments[1], arguments[2])
	if err != nil {
		return err
	}
	l := &load{queue: q, body: payload(size)}
	lines, answers := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		answer, err := l.do(words)
		if err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (l *load) do(words []string) (any, error) {
	numbers := make([]float64, 0, 4)
	for _, word := range words[1:] {
		number, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, number)
	}
	switch {
	case words[0] == "publish" && len(numbers) == 4:
		return l.publish(int(numbers[0]), int(numbers[1]), int64(numbers[2]), seconds(numbers[3]))
	case words[0] == "join" && len(numbers) == 2:
		return l.join(int(numbers[0]), int(numbers[1]))
	case words[0] == "drain" && len(numbers) == 1:
		return l.drain(seconds(numbers[0]))
	case words[0] == "thin" && len(numbers) == 1:
		return l.thin(int64(numbers[0]))
	}
	return nil, fmt.Errorf("unknown command")
}

// Random letters, so that the load cannot be compressed to nothing.
func payload(size int) []byte {
	body := make([]byte, size)
	for i := range body {
		body[i] = byte('a' + (i*7+i/26)%26)
	}
	return body
}
