package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Headrace: publishing uses Kafka's requests, leasing and settling Headrace's own. A settlement is confirmed when it is on
// disk. There are three ways to consume. `headrace` sends the settlement of one batch together with the lease of the next,
// and waits for both. `headrace-prefetch` leases in advance, with the same limit as RabbitMQ's prefetch, and sends a
// settlement per batch without waiting for earlier ones. `headrace-gather` leases in advance like Kafka's clients, and
// sends all messages that were settled during the last settlement in one request.
const (
	leaseWait        = 500 * time.Millisecond
	leaseBytesMax    = 4 << 20
	prefetchMin      = 100
	gatherMin        = 500 // as many as Kafka's clients request at once
	subscriptionName = "workers"
	retryPause       = 10 * time.Millisecond

	subscriptionsTime = time.Duration(-1 * time.Millisecond) // the lease duration of the subscription
	thinnedAtOnce     = 10_000
	thinnedTime       = time.Hour
)

type headraceQueue struct {
	kafkaQueue
	partitions []int32
	way        way
	members    *atomic.Int32
}

type way int

const (
	asking way = iota
	prefetch
	gather
)

func openHeadrace(way way) func(address, topic string) (queue, error) {
	return func(address, topic string) (queue, error) { return newHeadrace(address, topic, way) }
}

func newHeadrace(address, topic string, way way) (queue, error) {
	q := headraceQueue{kafkaQueue{address, topic}, nil, way, &atomic.Int32{}}
	client, err := kgo.NewClient(kgo.SeedBrokers(address))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if q.partitions, err = partitionsOf(client, topic); err != nil {
		return nil, err
	}
	return q, q.subscribe()
}

// Create the subscription at the start of the topic. A server that has just started may not be a leader yet.
func (q headraceQueue) subscribe() error {
	deadline := time.Now().Add(joinPatience)
	for {
		err := q.create()
		if !kerr.IsRetriable(err) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(retryPause)
	}
}

func (q headraceQueue) create() error {
	l, err := dialLine(q.address)
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.send(encodeCreate(q.topic, q.partitions), decodeCreated); err != nil {
		return err
	}
	return l.receive()
}

func (q headraceQueue) consumer(batch int) (consumer, error) {
	l, err := dialLine(q.address)
	if err != nil {
		return nil, err
	}
	number := q.members.Add(1) - 1
	// Each consumer starts with another partition, so that they do not all use the first.
	order := append(append([]int32{}, q.partitions[int(number)%len(q.partitions):]...),
		q.partitions[:int(number)%len(q.partitions)]...)
	c := headraceConsumer{line: l, topic: q.topic, member: fmt.Sprintf("c%d", number), partitions: order, batch: batch}
	switch q.way {
	case prefetch:
		return newPrefetching(c, max(batch*4, prefetchMin), false), nil
	case gather:
		return newPrefetching(c, max(batch*4, gatherMin), true), nil
	}
	return &c, nil
}

// thin leases messages for a long time and leaves every tenth unsettled.
func (q headraceQueue) thin(count int64) error {
	l, err := dialLine(q.address)
	if err != nil {
		return err
	}
	defer l.close()
	for count > 0 {
		var leased []receipt
		request := encodeLease(q.topic, "thinner", q.partitions, thinnedAtOnce, leaseWait, thinnedTime)
		read := func(answer *reader) (err error) { leased, err = decodeLeased(answer); return }
		if err := firstOf(l.send(request, read), l.receive()); err != nil {
			return err
		}
		if len(leased) == 0 {
			return fmt.Errorf("nothing is left, %d messages too early", count)
		}
		count -= int64(countOf(leased))
		settle := encodeSettle(q.topic, "thinner", nineOfTen(leased))
		if err := firstOf(l.send(settle, decodeSettled), l.receive()); err != nil {
			return err
		}
	}
	return nil
}

// nineOfTen skips the offsets that end in 9.
func nineOfTen(leased []receipt) (kept []receipt) {
	for _, each := range leased {
		for first := each.first; first <= each.last; first = first/10*10 + 10 {
			part := each
			part.first, part.last = first, min(first/10*10+8, each.last)
			if part.first <= part.last {
				kept = append(kept, part)
			}
		}
	}
	return kept
}

type headraceConsumer struct {
	line          *line
	topic, member string
	partitions    []int32
	batch         int
	held          []receipt
}

func (c *headraceConsumer) lease(count int) []byte {
	return encodeLease(c.topic, c.member, c.partitions, count, leaseWait, subscriptionsTime)
}

func (c *headraceConsumer) take(context.Context) (int, error) {
	if len(c.held) > 0 {
		if err := c.line.send(encodeSettle(c.topic, c.member, c.held), decodeSettled); err != nil {
			return 0, err
		}
	}
	settling := len(c.held) > 0
	read := func(answer *reader) (err error) { c.held, err = decodeLeased(answer); return }
	if err := c.line.send(c.lease(c.batch), read); err != nil {
		return 0, err
	}
	if settling {
		if err := c.line.receive(); err != nil {
			return 0, err
		}
	}
	err := c.line.receive()
	return countOf(c.held), err
}

func (c *headraceConsumer) finish(context.Context) error {
	if len(c.held) == 0 {
		return nil
	}
	if err := c.line.send(encodeSettle(c.topic, c.member, c.held), decodeSettled); err != nil {
		return err
	}
	c.held = nil
	return c.line.receive()
}

// prefetching reads responses in a second thread. A message is open from its lease until its settlement is confirmed; at
// most `prefetch` messages are open.
type prefetching struct {
	headraceConsumer
	prefetch int
	mutex    sync.Mutex
	changed  *sync.Cond
	open     int
	atHand   []receipt
	leasing  bool
	gathers  bool
	gathered []receipt
	settling bool // with gathering, one settlement at a time
	failed   error
}

func newPrefetching(c headraceConsumer, prefetch int, gathers bool) *prefetching {
	p := &prefetching{headraceConsumer: c, prefetch: prefetch, gathers: gathers}
	p.changed = sync.NewCond(&p.mutex)
	go p.readAnswers()
	return p
}

func (p *prefetching) take(ctx context.Context) (int, error) {
	stop := context.AfterFunc(ctx, p.wake)
	defer stop()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for countOf(p.atHand) < p.batch {
		if p.failed != nil || ctx.Err() != nil {
			return 0, firstOf(p.failed, ctx.Err())
		}
		if !p.leaseMore() {
			p.changed.Wait()
		}
	}
	batch, rest := split(p.atHand, p.batch)
	p.atHand = rest
	p.gathered = append(p.gathered, batch...)
	p.settle()
	p.leaseMore()
	return countOf(batch), p.failed
}

func (p *prefetching) settle() {
	if p.settling || len(p.gathered) == 0 {
		return
	}
	batch := joined(p.gathered)
	count := countOf(batch)
	p.gathered = p.gathered[:0]
	p.settling = p.gathers
	p.later(encodeSettle(p.topic, p.member, batch), func(answer *reader) error {
		p.open -= count
		p.settling = false
		p.settle()
		return decodeSettled(answer)
	})
}

// leaseMore leases more messages when half of the prefetch is free, one request at a time.
func (p *prefetching) leaseMore() bool {
	free := p.prefetch - p.open
	if p.leasing || free*2 < p.prefetch {
		return false
	}
	p.leasing = true
	p.open += free
	p.later(p.lease(free), func(answer *reader) error {
		leased, err := decodeLeased(answer)
		p.atHand = append(p.atHand, leased...)
		p.open -= free - countOf(leased)
		p.leasing = false
		return err
	})
	return true
}

// later sends a request whose response is read by another thread; the caller holds the mutex.
func (p *prefetching) later(request []byte, read func(*reader) error) {
	err := p.line.send(request, func(answer *reader) error {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		p.changed.Broadcast()
		return read(answer)
	})
	p.failed = firstOf(p.failed, err)
}

func (p *prefetching) readAnswers() {
	for {
		if err := p.line.receive(); err != nil {
			p.mutex.Lock()
			defer p.mutex.Unlock()
			p.failed = firstOf(p.failed, err)
			p.changed.Broadcast()
			return
		}
	}
}

func (p *prefetching) finish(ctx context.Context) error {
	stop := context.AfterFunc(ctx, p.wake)
	defer stop()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for p.failed == nil && ctx.Err() == nil && (p.leasing || p.open > countOf(p.atHand)) {
		p.changed.Wait()
	}
	return firstOf(p.failed, ctx.Err())
}

func (p *prefetching) wake() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.changed.Broadcast()
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
