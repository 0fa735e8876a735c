package main

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type load struct {
	queue     queue
	address   string
	left      atomic.Int64
	consumers []*connection
	batch     int
}

// figures of one command. A latency is per request when publishing, per pull with its acknowledgement when draining, and
// from before the publish to the delivery in a fan-out.
type figures struct {
	Messages  int64   `json:"messages"`
	Wall      float64 `json:"wall_s"`
	ClientCPU float64 `json:"client_cpu_s"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
}

func (l *load) publish(publishers, batch int, count int64, limit time.Duration) (figures, error) {
	connections, err := l.dial(publishers)
	if err != nil {
		return figures{}, err
	}
	request, confirms, err := l.queue.publishing(batch)
	if err != nil {
		return figures{}, err
	}
	var sent, confirmed atomic.Int64
	latencies := make([][]time.Duration, publishers)
	began := begin()
	deadline := began.wall.Add(limit)
	err = together(publishers, func(i int) error {
		defer connections[i].close()
		for at := time.Now(); at.Before(deadline) && sent.Add(int64(batch)) <= count; {
			answer, err := connections[i].ask(request)
			if err != nil {
				return err
			}
			if !confirms(answer) {
				return fmt.Errorf("a publish was answered with %d: %.300s", answer.status, answer.body)
			}
			confirmed.Add(int64(batch))
			now := time.Now()
			latencies[i] = append(latencies[i], now.Sub(at))
			at = now
		}
		return nil
	})
	done := began.figures(slices.Concat(latencies...))
	done.Messages = confirmed.Load()
	l.left.Add(done.Messages)
	return done, err
}

func (l *load) join(consumers, batch int) (figures, error) {
	began := begin()
	var err error
	if l.consumers, err = l.dial(consumers); err != nil {
		return figures{}, err
	}
	l.batch = batch
	err = together(consumers, func(i int) error {
		taken, err := l.queue.take(l.consumers[i], batch)
		l.left.Add(int64(-taken))
		return err
	})
	return began.figures(nil), err
}

// At the end some consumers hold messages that others wait for, so the last batches of each are not measured.
func (l *load) drain(limit time.Duration) (figures, error) {
	var settled atomic.Int64
	rest := int64(len(l.consumers) * 2 * l.batch)
	latencies := make([][]time.Duration, len(l.consumers))
	began := begin()
	deadline := began.wall.Add(limit)
	err := together(len(l.consumers), func(i int) error {
		for at := time.Now(); at.Before(deadline) && l.left.Load() > rest; {
			taken, err := l.queue.take(l.consumers[i], l.batch)
			if err != nil {
				return err
			}
			now := time.Now()
			if taken > 0 {
				latencies[i] = append(latencies[i], now.Sub(at))
				settled.Add(int64(taken))
				l.left.Add(int64(-taken))
			}
			at = now
		}
		return nil
	})
	done := began.figures(slices.Concat(latencies...))
	done.Messages = settled.Load()
	if err == nil && done.Messages == 0 {
		err = fmt.Errorf("nothing was settled")
	}
	return done, err
}

func (l *load) dial(count int) ([]*connection, error) {
	connections := make([]*connection, count)
	return connections, together(count, func(i int) error {
		var err error
		connections[i], err = dial(l.address)
		return err
	})
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
	done.rank(latencies)
	return done
}

func (f *figures) rank(latencies []time.Duration) {
	if len(latencies) > 0 {
		slices.Sort(latencies)
		f.P50 = latencies[len(latencies)/2].Seconds() * 1e6
		f.P99 = latencies[len(latencies)*99/100].Seconds() * 1e6
	}
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func seconds(count float64) time.Duration { return time.Duration(count * float64(time.Second)) }
