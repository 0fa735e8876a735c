package main

import (
	"bufio"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Fan-out: every stream has its own subscription, all on one topic. Messages are acknowledged on a second connection, with
// one request for all that arrived during the previous request.
type fanout struct {
	queue     headraceQueue
	streams   []*stream
	mutex     sync.Mutex
	moved     *sync.Cond
	settled   []int64 // per stream
	isClosing bool
	err       error
}

type stream struct {
	name       string
	connection *connection
	events     *bufio.Reader
	receipts   chan string
	latencies  []time.Duration
}

const receiptsMax = 1000 // per request

func (l *load) fanout(streams, batch int, window int64, limit time.Duration) (figures, error) {
	q, ok := l.queue.(headraceQueue)
	if !ok {
		return figures{}, fmt.Errorf("only Headrace has streams")
	}
	f := &fanout{queue: q, settled: make([]int64, streams), streams: make([]*stream, streams)}
	f.moved = sync.NewCond(&f.mutex)
	err := together(streams, func(i int) error {
		var err error
		f.streams[i], err = f.open(fmt.Sprintf("stream-%d", i), window)
		return err
	})
	if err != nil {
		return figures{}, err
	}
	var running sync.WaitGroup
	for i, s := range f.streams {
		running.Go(func() { f.fail(s.read()) })
		running.Go(func() { f.fail(f.settle(i, s)) })
	}
	began := begin()
	err = f.publish(batch, window, began.wall.Add(limit))
	done := began.figures(nil)
	f.close()
	running.Wait()
	var latencies []time.Duration
	for i, s := range f.streams {
		done.Messages += f.settled[i]
		latencies = append(latencies, s.latencies...)
	}
	done.rank(latencies)
	return done, err
}

func (f *fanout) open(name string, window int64) (*stream, error) {
	c, err := dial(f.queue.address)
	if err != nil {
		return nil, err
	}
	if err := f.queue.subscribe(c, name); err != nil {
		return nil, err
	}
	path := fmt.Sprintf("/subscriptions/%s/stream?max_in_flight=%d&topic=%s", name, window, f.queue.name)
	events, err := c.stream(request("GET", path, "", nil))
	if err == nil {
		_, err = events.ReadSlice('\n') // the initial comment: messages follow
	}
	return &stream{name: name, connection: c, events: events, receipts: make(chan string, window)}, err
}

// publish returns when all streams have settled everything.
func (f *fanout) publish(batch int, window int64, deadline time.Time) error {
	c, err := dial(f.queue.address)
	if err != nil {
		return err
	}
	defer c.close()
	var published int64
	for time.Now().Before(deadline) {
		if err := f.waitFor(published + int64(batch) - window); err != nil {
			return err
		}
		message := object(f.queue.size, time.Now().UnixNano())
		if _, err := c.expect(f.queue.publication(message, batch), 201); err != nil {
			return err
		}
		published += int64(batch)
	}
	return f.waitFor(published)
}

// waitFor returns when every stream has settled this many messages.
func (f *fanout) waitFor(count int64) error {
	watch := time.AfterFunc(patience, func() { f.fail(fmt.Errorf("streams got nothing for a minute")) })
	defer watch.Stop()
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for f.err == nil && slices.Min(f.settled) < count {
		f.moved.Wait()
	}
	return f.err
}

func (f *fanout) settle(i int, s *stream) error {
	c, err := dial(f.queue.address)
	if err != nil {
		return err
	}
	defer c.close()
	for first := range s.receipts {
		receipts := []string{first}
		for len(receipts) < receiptsMax && len(s.receipts) > 0 {
			receipts = append(receipts, <-s.receipts)
		}
		if err := f.queue.ack(c, s.name, receipts); err != nil {
			return err
		}
		f.mutex.Lock()
		f.settled[i] += int64(len(receipts))
		f.mutex.Unlock()
		f.moved.Signal()
	}
	return nil
}

func (f *fanout) close() {
	f.mutex.Lock()
	f.isClosing = true
	f.mutex.Unlock()
	for _, s := range f.streams {
		s.connection.close()
	}
}

// fail stops everything, unless it is stopping already: then reads fail on purpose.
func (f *fanout) fail(err error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if err != nil && f.err == nil && !f.isClosing {
		f.err = err
		f.moved.Signal()
	}
}

// read returns when the stream ends.
func (s *stream) read() error {
	defer close(s.receipts)
	for {
		line, err := s.events.ReadString('\n')
		if err != nil {
			return err
		}
		if line == "event: error\n" {
			line, err = s.events.ReadString('\n')
			return fmt.Errorf("a stream has ended: %s %w", line, err)
		}
		if !strings.HasPrefix(line, "data: ") {
			continue
		}
		at, err := sentAt(line)
		if err != nil {
			return err
		}
		s.latencies = append(s.latencies, time.Since(at))
		for _, receipt := range receiptsIn([]byte(line)) {
			s.receipts <- receipt
		}
	}
}

// sentAt reads the send time from the message of an event.
func sentAt(event string) (time.Time, error) {
	_, rest, _ := strings.Cut(event, `"at":`)
	digits, _, _ := strings.Cut(rest, ",")
	nanoseconds, err := strconv.ParseInt(digits, 10, 64)
	return time.Unix(0, nanoseconds), err
}
