// reqload: measure the cost of a produce request by the number of connections and partitions. Prints one line of JSON.
//
//   reqload PORT TOPIC REQUESTS SIZE CONNECTIONS IN_FLIGHT PARTITIONS
//
// Opens all connections, sends a request on each, prints "connected" and waits for a line on stdin, so that the harness
// can read the server's CPU time here. Then sends REQUESTS Produce requests (v7, acks=all, one record of SIZE bytes)
// round robin over connections and partitions, IN_FLIGHT of them at a time. Without a client library, so that a
// thousand connections cost the client almost nothing.
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { PRODUCE = 0, VERSION = 7, ACKS_ALL = -1, TIMEOUT_MS = 30000, ANSWER_MAX = 4096, STALL_MS = 30000 };

typedef struct {
    int fd;
    int filled;
    unsigned char answer[ANSWER_MAX];
} Connection;

typedef struct {
    unsigned char *bytes;
    int size, correlation_at, partition_at;
} Frame;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void die(const char *what) {
    fprintf(stderr, "reqload: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static unsigned char *put16(unsigned char *at, int value) {
    uint16_t wire = htobe16((uint16_t)value);
    memcpy(at, &wire, 2);
    return at + 2;
}

static unsigned char *put32(unsigned char *at, uint32_t value) {
    uint32_t wire = htobe32(value);
    memcpy(at, &wire, 4);
    return at + 4;
}

static unsigned char *put64(unsigned char *at, int64_t value) {
    uint64_t wire = htobe64((uint64_t)value);
    memcpy(at, &wire, 8);
    return at + 8;
}

static unsigned char *put_varint(unsigned char *at, int value) {
    uint32_t zigzag = ((uint32_t)value << 1) ^ (uint32_t)(value >> 31);
    for (; zigzag > 127; zigzag >>= 7)
        *at++ = (unsigned char)(zigzag | 128);
    *at++ = (unsigned char)zigzag;
    return at;
}

static int varint_size(int value) {
    unsigned char scratch[5];
    return (int)(put_varint(scratch, value) - scratch);
}

static uint32_t crc32c(const unsigned char *bytes, int size) {
    uint32_t crc = ~0u;
    for (int i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

// One batch (v2) with one record: no key, no headers, no producer id. It is the same for every partition.
static unsigned char *put_batch(unsigned char *at, int size) {
    unsigned char *batch = at;
    int64_t stamp = (int64_t)time(0) * 1000;
    int record = 1 + 1 + 1 + 1 + varint_size(size) + size + 1;
    at = put64(at, 0); // base offset
    at += 4;           // length, set below
    at = put32(at, (uint32_t)-1);
    *at++ = 2; // magic
    unsigned char *crc = at;
    at += 4;
    at = put16(at, 0);
    at = put32(at, 0);
    at = put64(at, stamp);
    at = put64(at, stamp);
    at = put64(at, -1);
    at = put16(at, -1);
    at = put32(at, (uint32_t)-1);
    at = put32(at, 1);
    at = put_varint(at, record);
    *at++ = 0;              // attributes
    *at++ = 0;              // timestamp delta
    *at++ = 0;              // offset delta
    at = put_varint(at, -1); // no key
    at = put_varint(at, size);
    memset(at, 'a', size);
    at += size;
    *at++ = 0; // headers
    put32(batch + 8, (uint32_t)(at - batch - 12));
    put32(crc, crc32c(crc + 4, (int)(at - crc - 4)));
    return at;
}

static Frame build_frame(const char *topic, int size) {
    Frame frame = {calloc(1, size + 512 + strlen(topic)), 0, 0, 0};
    unsigned char *at = frame.bytes + 4;
    at = put16(at, PRODUCE);
    at = put16(at, VERSION);
    frame.correlation_at = (int)(at - frame.bytes);
    at = put32(at, 0);
    at = put16(at, 7);
    memcpy(at, "reqload", 7);
    at += 7;
    at = put16(at, -1); // no transactional id
    at = put16(at, ACKS_ALL);
    at = put32(at, TIMEOUT_MS);
    at = put32(at, 1);
    at = put16(at, (int)strlen(topic));
    memcpy(at, topic, strlen(topic));
    at += strlen(topic);
    at = put32(at, 1);
    frame.partition_at = (int)(at - frame.bytes);
    at = put32(at, 0);
    unsigned char *records = at;
    at = put_batch(at + 4, size);
    put32(records, (uint32_t)(at - records - 4));
    frame.size = (int)(at - frame.bytes);
    put32(frame.bytes, (uint32_t)(frame.size - 4));
    return frame;
}

static Connection *connect_all(int port, int count, int epoll) {
    struct rlimit files = {count + 64, count + 64};
    setrlimit(RLIMIT_NOFILE, &files);
    Connection *connections = calloc(count, sizeof *connections);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < count; i++) {
        Connection *c = &connections[i];
        int yes = 1;
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address))
            die("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event);
    }
    return connections;
}

static void send_request(Frame *frame, Connection *connection, long number, int partition) {
    put32(frame->bytes + frame->correlation_at, (uint32_t)number);
    put32(frame->bytes + frame->partition_at, (uint32_t)partition);
    for (int sent = 0; sent < frame->size;) {
        ssize_t n = write(connection->fd, frame->bytes + sent, frame->size - sent);
        if (n < 0)
            die("write");
        sent += (int)n;
    }
}

static uint32_t get32(const unsigned char *at) {
    uint32_t wire;
    memcpy(&wire, at, 4);
    return be32toh(wire);
}

// Reads the available bytes and records the latency of each complete response. Returns the number of responses.
static int read_answers(Connection *connection, int error_at, double *sent_at) {
    ssize_t n = read(connection->fd, connection->answer + connection->filled, ANSWER_MAX - connection->filled);
    if (n <= 0)
        die("the server closed a connection");
    connection->filled += (int)n;
    int answers = 0;
    while (connection->filled >= 4) {
        int size = 4 + (int)get32(connection->answer);
        if (size > ANSWER_MAX || size < error_at + 2)
            die("an answer of strange size");
        if (connection->filled < size)
            break;
        int error = connection->answer[error_at] << 8 | connection->answer[error_at + 1];
        if (error) {
            fprintf(stderr, "reqload: the server answered with error %d\n", error);
            exit(1);
        }
        long number = get32(connection->answer + 4);
        sent_at[number] = now() - sent_at[number];
        connection->filled -= size;
        memmove(connection->answer, connection->answer + size, connection->filled);
        answers++;
    }
    return answers;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct {
    Connection *connections;
    int connection_count, partitions, in_flight, epoll, error_at;
    Frame frame;
} Load;

// Returns when all requests have a response; `latency` then contains the time of each.
static void send_all(Load *load, long requests, double *latency) {
    struct epoll_event events[256];
    for (long sent = 0, answered = 0; answered < requests;) {
        for (; sent < requests && sent - answered < load->in_flight; sent++) {
            latency[sent] = now();
            send_request(&load->frame, &load->connections[sent % load->connection_count], sent,
                         (int)(sent % load->partitions));
        }
        int ready = epoll_wait(load->epoll, events, 256, STALL_MS);
        if (ready <= 0)
            die("no answer within 30 s");
        for (int i = 0; i < ready; i++)
            answered += read_answers(events[i].data.ptr, load->error_at, latency);
    }
}

int main(int argc, char **argv) {
    if (argc != 8) {
        fprintf(stderr, "usage: reqload PORT TOPIC REQUESTS SIZE CONNECTIONS IN_FLIGHT PARTITIONS\n");
        return 2;
    }
    const char *topic = argv[2];
    long requests = atol(argv[3]);
    Load load = {.connection_count = atoi(argv[5]), .in_flight = atoi(argv[6]), .partitions = atoi(argv[7])};
    load.epoll = epoll_create1(0);
    load.connections = connect_all(atoi(argv[1]), load.connection_count, load.epoll);
    load.frame = build_frame(topic, atoi(argv[4]));
    // Response: size, correlation id, topic count, topic name, partition count, partition, error code, ...
    load.error_at = 4 + 4 + 4 + 2 + (int)strlen(topic) + 4 + 4;
    double *latency = calloc(requests + load.connection_count, sizeof(double));
    send_all(&load, load.connection_count, latency);
    printf("connected\n");
    fflush(stdout);
    if (getchar() == EOF)
        return 1;
    double began = now();
    send_all(&load, requests, latency);
    double wall = now() - began;
    struct timespec cpu;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    qsort(latency, requests, sizeof(double), by_value);
    printf("{\"requests\":%ld,\"wall_s\":%.4f,\"client_cpu_s\":%.3f,\"p50_us\":%.1f,\"p99_us\":%.1f}\n", requests, wall,
           cpu.tv_sec + cpu.tv_nsec * 1e-9, latency[requests / 2] * 1e6, latency[(long)(requests * .99)] * 1e6);
    return 0;
}
