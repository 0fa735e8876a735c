package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	joinPatience = 60 * time.Second
	endPatience  = 60 * time.Second
	restMin      = 100
)

// publisher sends while `more` returns true, and reports the send time of each confirmed message.
type publisher interface {
	publish(more func() bool, confirmed func(sent time.Time)) error
	close()
}

// consumer leases a batch and settles it; the settlement may be in flight when take returns, if the next take waits for
// it. finish returns when the server has received every settlement.
type consumer interface {
	take(ctx context.Context) (int, error)
	finish(ctx context.Context) error
}

type load struct {
	queue     queue
	body      []byte
	left      atomic.Int64
	consumers []consumer
	batch     int
}

// figures of one command. A latency is per message when publishing, and per batch when draining.
type figures struct {
	Messages  int64   `json:"messages"`
	Wall      float64 `json:"wall_s"`
	ClientCPU float64 `json:"client_cpu_s"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
}

func (l *load) publish(publishers, window int, count int64, limit time.Duration) (figures, error) {
	all := make([]publisher, publishers)
	for i := range all {
		var err error
		if all[i], err = l.queue.publisher(l.body, window); err != nil {
			return figures{}, err
		}
		defer all[i].close()
	}
	var sent atomic.Int64
	began := begin()
	deadline := began.wall.Add(limit)
	more := func() bool { return sent.Add(1) <= count && time.Now().Before(deadline) }
	latencies := make([][]time.Duration, publishers)
	err := together(publishers, func(i int) error {
		return all[i].publish(more, func(at time.Time) { latencies[i] = append(latencies[i], time.Since(at)) })
	})
	done := began.figures(slices.Concat(latencies...))
	done.Messages = 0
	for _, each := range latencies {
		done.Messages += int64(len(each))
	}
	l.left.Add(done.Messages)
	return done, err
}

func (l *load) join(consumers, batch int) (figures, error) {
	began := begin()
	ctx, cancel := context.WithTimeout(context.Background(), joinPatience)
	defer cancel()
	l.consumers, l.batch = make([]consumer, consumers), batch
	err := together(consumers, func(i int) error {
		var err error
		if l.consumers[i], err = l.queue.consumer(batch); err != nil {
			return err
		}
		for taken := 0; taken == 0; {
			if taken, err = l.consumers[i].take(ctx); err != nil {
				return err
			}
			l.left.Add(int64(-taken))
		}
		return nil
	})
	return began.figures(nil), err
}

// At the end some consumers hold messages that others wait for, so the last batches of each are not measured.
func (l *load) drain(limit time.Duration) (figures, error) {
	var settled atomic.Int64
	rest := int64(len(l.consumers) * max(5*l.batch, restMin))
	latencies := make([][]time.Duration, len(l.consumers))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began := begin()
	err := together(len(l.consumers), func(i int) error {
		for l.left.Load() > rest {
			asked := time.Now()
			taken, err := l.consumers[i].take(ctx)
			if ctx.Err() != nil {
				break
			}
			if err != nil {
				return err
			}
			if taken == 0 {
				continue
			}
			latencies[i] = append(latencies[i], time.Since(asked))
			settled.Add(int64(taken))
			if l.left.Add(int64(-taken)) <= rest {
				cancel()
			}
		}
		end, release := context.WithTimeout(context.Background(), endPatience)
		defer release()
		return l.consumers[i].finish(end)
	})
	done := began.figures(slices.Concat(latencies...))
	done.Messages = settled.Load()
	if err == nil && done.Messages == 0 {
		err = fmt.Errorf("nothing was settled")
	}
	return done, err
}

func (l *load) thin(count int64) (figures, error) {
	q, ok := l.queue.(headraceQueue)
	if !ok {
		return figures{}, fmt.Errorf("only Headrace's queues can be thinned out")
	}
	began := begin()
	err := q.thin(count)
	done := began.figures(nil)
	done.Messages = count
	return done, err
}

// together runs all of them and returns the first error.
func together(count int, work func(i int) error) error {
	errs := make([]error, count)
	var group sync.WaitGroup
	for i := range count {
		group.Go(func() { errs[i] = work(i) })
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

type beginning struct {
	wall time.Time
	cpu  float64
}

func begin() beginning { return beginning{time.Now(), cpuSeconds()} }

func (b beginning) figures(latencies []time.Duration) figures {
	done := figures{Wall: time.Since(b.wall).Seconds(), ClientCPU: cpuSeconds() - b.cpu}
	if len(latencies) > 0 {
		slices.Sort(latencies)
		done.P50 = latencies[len(latencies)/2].Seconds() * 1e6
		done.P99 = latencies[len(latencies)*99/100].Seconds() * 1e6
	}
	return done
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func seconds(count float64) time.Duration { return time.Duration(count * float64(time.Second)) }
