package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"
)

// A connection sends prepared bytes and parses no more of a response than necessary: the load generator shares the machine
// with the server, and net/http would use as much CPU time as the server.
type connection struct {
	socket net.Conn
	in     *bufio.Reader
	body   []byte
}

const patience = 60 * time.Second

// answer's body is valid until the next request of the connection.
type answer struct {
	status int
	body   []byte
}

func dial(address string) (*connection, error) {
	socket, err := net.DialTimeout("tcp", strings.TrimPrefix(address, "http://"), patience)
	if err != nil {
		return nil, err
	}
	return &connection{socket: socket, in: bufio.NewReaderSize(socket, 1<<16)}, nil
}

// request has the format of common clients; `more` are additional header lines.
func request(method, path, contentType string, body []byte, more ...string) []byte {
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s %s HTTP/1.1\r\nhost: 127.0.0.1\r\nuser-agent: restload/1\r\naccept: */*\r\n", method, path)
	for _, line := range more {
		text.WriteString(line + "\r\n")
	}
	if method != "GET" {
		fmt.Fprintf(&text, "content-type: %s\r\ncontent-length: %d\r\n", contentType, len(body))
	}
	text.WriteString("\r\n")
	text.Write(body)
	return text.Bytes()
}

func (c *connection) ask(request []byte) (answer, error) {
	if err := c.socket.SetDeadline(time.Now().Add(patience)); err != nil {
		return answer{}, err
	}
	if _, err := c.socket.Write(request); err != nil {
		return answer{}, err
	}
	status, size, err := c.head()
	if err != nil {
		return answer{}, err
	}
	if size < 0 {
		return answer{}, fmt.Errorf("an answer without a length")
	}
	if cap(c.body) < size {
		c.body = make([]byte, size)
	}
	_, err = io.ReadFull(c.in, c.body[:size])
	return answer{status, c.body[:size]}, err
}

// expect sends a request, and returns an error for any other status.
func (c *connection) expect(request []byte, statuses ...int) (answer, error) {
	found, err := c.ask(request)
	if err != nil {
		return found, err
	}
	for _, status := range statuses {
		if found.status == status {
			return found, nil
		}
	}
	line, _, _ := bytes.Cut(request, []byte("\r\n"))
	return found, fmt.Errorf("%s was answered with %d: %.300s", line, found.status, found.body)
}

// stream requests an endless response, and returns a reader of it.
func (c *connection) stream(request []byte) (*bufio.Reader, error) {
	if _, err := c.socket.Write(request); err != nil {
		return nil, err
	}
	status, size, err := c.head()
	if err == nil && (status != 200 || size >= 0) {
		err = fmt.Errorf("no stream, but an answer with %d", status)
	}
	return bufio.NewReaderSize(httputil.NewChunkedReader(c.in), 1<<16), err
}

func (c *connection) close() { c.socket.Close() }

// head reads up to the body, whose size is -1 if it is unknown.
func (c *connection) head() (status, size int, err error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, 0, err
	}
	if len(line) < 12 {
		return 0, 0, fmt.Errorf("no answer: %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, 0, err
	}
	size = -1
	if status == 204 {
		size = 0
	}
	for {
		if line, err = c.in.ReadSlice('\n'); err != nil {
			return 0, 0, err
		}
		if len(line) <= 2 {
			return status, size, nil
		}
		if name, value, _ := bytes.Cut(line, []byte(":")); bytes.EqualFold(name, []byte("content-length")) {
			if size, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, 0, err
			}
		}
	}
}
