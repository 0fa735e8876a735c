// restload puts load on a queue of a peer over HTTP: publish, then pull and acknowledge, or receive event streams.
//
//	restload PROTOCOL ADDRESS QUEUE SIZE
//
// It starts with an empty queue, executes the commands on its standard input, and responds to each with one line of JSON,
// so that the harness can read the server's CPU time between them. The first three are those of queueload:
//
//	publish PUBLISHERS BATCH COUNT SECONDS    BATCH messages per request; ends after COUNT messages or SECONDS
//	join CONSUMERS BATCH                      every consumer pulls and acknowledges a batch, then waits
//	drain SECONDS                             all consumers pull until few messages are left or the time is up
//	fanout STREAMS BATCH WINDOW SECONDS       publish batches to STREAMS subscriptions that settle all messages,
//	                                          with at most WINDOW messages unsettled by any of them; Headrace only
//
// Every client has its own keep-alive connection with at most one request in flight. Each protocol has its own file, which
// describes its requests.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// queue is the interface of a protocol.
type queue interface {
	// publishing returns the request that publishes a batch, and the function that checks its response.
	publishing(batch int) (request []byte, confirms func(answer) bool, err error)
	// take pulls up to a batch and acknowledges it.
	take(c *connection, batch int) (int, error)
}

var open = map[string]func(address, name string, size int) (queue, error){
	"rest":      openHeadrace,
	"echo":      openEcho,
	"amqp-http": openRabbit,
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "restload:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 4 || open[arguments[0]] == nil {
		return fmt.Errorf("usage: restload PROTOCOL ADDRESS QUEUE SIZE")
	}
	size, err := strconv.Atoi(arguments[3])
	if err != nil {
		return err
	}
	q, err := open[arguments[0]](arguments[1], arguments[2], size)
	if err != nil {
		return err
	}
	l := &load{queue: q, address: arguments[1]}
	lines, answers := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for lines.Scan() {
		answer, err := l.do(strings.Fields(lines.Text()))
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
	case words[0] == "fanout" && len(numbers) == 4:
		return l.fanout(int(numbers[0]), int(numbers[1]), int64(numbers[2]), seconds(numbers[3]))
	}
	return nil, fmt.Errorf("unknown command")
}
