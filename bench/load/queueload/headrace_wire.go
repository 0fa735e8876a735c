package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Headrace's own requests, all of version 0 and flexible; src/headrace/wire/messages describes their fields.
const (
	apiLease                    = 10001
	apiSettle                   = 10002
	apiAlterSubscriptions       = 10004
	actionCreate                = 0
	fromTheStart          int64 = -2
	howAck                      = 1
	answersMax                  = 4096
	lineBufferBytes             = 256 << 10
)

// receipt is a range of leased messages in a Settle request.
type receipt struct {
	partition, epoch, attempt int32
	first, last               int64
}

func countOf(receipts []receipt) int {
	count := 0
	for _, each := range receipts {
		count += int(each.last - each.first + 1)
	}
	return count
}

// joined merges adjacent receipts.
func joined(receipts []receipt) (all []receipt) {
	for _, each := range receipts {
		if n := len(all); n > 0 {
			last := &all[n-1]
			next := *last
			next.first, next.last = last.last+1, each.last
			if next == each {
				last.last = each.last
				continue
			}
		}
		all = append(all, each)
	}
	return all
}

// split separates the first `count` messages.
func split(receipts []receipt, count int) (front, rest []receipt) {
	for i, each := range receipts {
		size := int(each.last - each.first + 1)
		if count < size {
			head, tail := each, each
			head.last = each.first + int64(count) - 1
			tail.first = head.last + 1
			if count > 0 {
				front = append(front, head)
			}
			return front, append([]receipt{tail}, receipts[i+1:]...)
		}
		front = append(front, each)
		count -= size
	}
	return front, nil
}

// line is a connection with responses in the order of the requests.
type line struct {
	socket   net.Conn
	buffered *bufio.Reader
	expected chan func(*reader) error
	frame    []byte
}

func dialLine(address string) (*line, error) {
	socket, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &line{
		socket: socket, buffered: bufio.NewReaderSize(socket, lineBufferBytes),
		expected: make(chan func(*reader) error, answersMax),
	}, nil
}

func (l *line) close() { l.socket.Close() }

// send writes a request; a later receive calls `read` with its response.
func (l *line) send(request []byte, read func(*reader) error) error {
	l.expected <- read
	_, err := l.socket.Write(request)
	return err
}

// receive waits for the next response.
func (l *line) receive() error {
	read := <-l.expected
	var size [4]byte
	if _, err := io.ReadFull(l.buffered, size[:]); err != nil {
		return err
	}
	length := int(binary.BigEndian.Uint32(size[:]))
	if cap(l.frame) < length {
		l.frame = make([]byte, length*2)
	}
	frame := l.frame[:length]
	if _, err := io.ReadFull(l.buffered, frame); err != nil {
		return err
	}
	answer := &reader{rest: frame}
	answer.int32() // correlation id
	answer.tags()
	if err := read(answer); err != nil {
		return err
	}
	if answer.broken {
		return errors.New("an answer ends early")
	}
	return nil
}

func header(api uint16) []byte {
	frame := make([]byte, 4, 256)
	frame = binary.BigEndian.AppendUint16(frame, api)
	frame = binary.BigEndian.AppendUint16(frame, 0) // version
	frame = binary.BigEndian.AppendUint32(frame, 0) // correlation id: unused, responses are in order
	frame = binary.BigEndian.AppendUint16(frame, 0xffff)
	return append(frame, 0)
}

func finished(frame []byte) []byte {
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

func appendString(frame []byte, text string) []byte {
	return append(binary.AppendUvarint(frame, uint64(len(text)+1)), text...)
}

func appendInt32(frame []byte, value int32) []byte {
	return binary.BigEndian.AppendUint32(frame, uint32(value))
}

func appendInt64(frame []byte, value int64) []byte {
	return binary.BigEndian.AppendUint64(frame, uint64(value))
}

func appendCount(frame []byte, count int) []byte { return binary.AppendUvarint(frame, uint64(count+1)) }

func encodeCreate(topic string, partitions []int32) []byte {
	frame := append(appendString(header(apiAlterSubscriptions), subscriptionName), actionCreate)
	frame = appendCount(appendString(appendCount(frame, 1), topic), len(partitions))
	for _, partition := range partitions {
		frame = appendInt64(appendInt32(frame, partition), fromTheStart)
		frame = append(appendInt64(frame, -1), 0)
	}
	return finished(append(frame, 0, 0))
}

func decodeCreated(answer *reader) error {
	if err := answer.head(); err != nil {
		return err
	}
	return answer.eachPartition(func() error {
		answer.int32()
		err := answer.failure()
		answer.int64()
		answer.tags()
		return err
	})
}

func encodeLease(topic, member string, partitions []int32, count int, wait, lease time.Duration) []byte {
	frame := appendString(appendString(header(apiLease), subscriptionName), member)
	frame = appendInt32(appendInt32(frame, int32(wait.Milliseconds())), int32(count))
	frame = appendInt32(appendInt32(frame, leaseBytesMax), int32(lease.Milliseconds()))
	frame = appendCount(appendString(appendCount(frame, 1), topic), len(partitions))
	for _, partition := range partitions {
		frame = appendInt32(frame, partition)
	}
	return finished(append(frame, 0, 0))
}

func decodeLeased(answer *reader) (leased []receipt, err error) {
	if err := answer.head(); err != nil {
		return nil, err
	}
	err = answer.eachPartition(func() error {
		each := receipt{partition: answer.int32()}
		if err := answer.failure(); err != nil {
			return err
		}
		each.epoch = answer.int32()
		answer.int64() // leased until
		for range answer.count() {
			each.first, each.last, each.attempt = answer.int64(), answer.int64(), answer.int32()
			answer.tags()
			leased = append(leased, each)
		}
		answer.skip(answer.count()) // the records
		answer.tags()
		return nil
	})
	return leased, err
}

func encodeSettle(topic, member string, receipts []receipt) []byte {
	byPartition := slices.Collect(chunksOf(receipts))
	frame := appendString(appendString(header(apiSettle), subscriptionName), member)
	frame = appendCount(appendString(appendCount(frame, 1), topic), len(byPartition))
	for _, of := range byPartition {
		frame = appendCount(appendInt32(appendInt32(frame, of[0].partition), of[0].epoch), len(of))
		for _, each := range of {
			frame = appendInt32(appendInt64(appendInt64(frame, each.first), each.last), each.attempt)
			frame = appendInt32(appendInt64(append(frame, howAck), -1), -1)
			frame = append(frame, 0, 0) // no reason, no tags
		}
		frame = append(frame, 0)
	}
	return finished(append(frame, 0, 0))
}

// chunksOf groups adjacent items of the same partition.
func chunksOf(receipts []receipt) iter.Seq[[]receipt] {
	return func(yield func([]receipt) bool) {
		for from, to := 0, 1; from < len(receipts); to++ {
			if to == len(receipts) || receipts[to].partition != receipts[from].partition {
				if !yield(receipts[from:to]) {
					return
				}
				from = to
			}
		}
	}
}

func decodeSettled(answer *reader) error {
	if err := answer.head(); err != nil {
		return err
	}
	return answer.eachPartition(func() error {
		answer.int32()
		err := answer.failure()
		for range answer.count() {
			answer.int32()
			err = firstOf(err, answer.failure(), errors.New("a settle was refused"))
			answer.tags()
		}
		answer.tags()
		return err
	})
}

// reader parses a response. A read beyond the end returns zero and marks the reader as broken.
type reader struct {
	rest   []byte
	broken bool
}

func (r *reader) skip(size int) []byte {
	if size > len(r.rest) {
		r.broken, r.rest = true, nil
		return make([]byte, 8)
	}
	taken := r.rest[:max(size, 0)]
	r.rest = r.rest[len(taken):]
	return taken
}

func (r *reader) int16() int16 { return int16(binary.BigEndian.Uint16(r.skip(2))) }
func (r *reader) int32() int32 { return int32(binary.BigEndian.Uint32(r.skip(4))) }
func (r *reader) int64() int64 { return int64(binary.BigEndian.Uint64(r.skip(8))) }

// count reads the size of an array or a string; null is 0.
func (r *reader) count() int {
	value, size := binary.Uvarint(r.rest)
	r.skip(max(size, 1))
	return max(int(value)-1, 0)
}

func (r *reader) tags() { r.skip(1) } // none are sent

// failure reads an error code and its message.
func (r *reader) failure() error {
	code := r.int16()
	message := string(r.skip(r.count()))
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", kerr.ErrorForCode(code), message)
}

func (r *reader) head() error {
	r.int32() // throttle time
	return r.failure()
}

func (r *reader) eachPartition(read func() error) error {
	for range r.count() {
		r.skip(r.count()) // the topic
		for range r.count() {
			if err := read(); err != nil {
				return err
			}
		}
		r.tags()
	}
	r.tags()
	return nil
}

func partitionsOf(client *kgo.Client, topic string) ([]int32, error) {
	request := kmsg.NewPtrMetadataRequest()
	wanted := kmsg.NewMetadataRequestTopic()
	wanted.Topic = &topic
	request.Topics = append(request.Topics, wanted)
	answer, err := request.RequestWith(context.Background(), client)
	if err != nil {
		return nil, err
	}
	var partitions []int32
	for _, each := range answer.Topics[0].Partitions {
		partitions = append(partitions, each.Partition)
	}
	return partitions, kerr.ErrorForCode(answer.Topics[0].ErrorCode)
}
