// rkload: put load on a server with the Kafka protocol, through librdkafka with its defaults. Prints one line of JSON.
//
//   rkload produce BOOTSTRAP TOPIC RECORDS SIZE PARTITIONS [name=value ...]   at the maximum rate, until all records are acknowledged
//   rkload consume BOOTSTRAP TOPIC RECORDS SIZE PARTITIONS [name=value ...]   from the start, with assigned partitions
//   rkload latency BOOTSTRAP TOPIC RECORDS SIZE PARTITIONS rate=R [...]       open loop at R per second, end to end
//   rkload first   BOOTSTRAP TOPIC 1 SIZE 1 [...]                             the time of the first acknowledgement
//
// name=value is a setting of librdkafka; the prefix "p." or "c." restricts it to the producer or the consumer. Exceptions are
// rate=, keys=N (produce: cycle through N keys, else none) and text=1 (produce: different words in each record, else the same
// letters in all).
#include "rdkafka.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { CONSUME_BATCH = 10000, CONSUME_TIMEOUT_MS = 20000, DEADLINE_S = 120, WARM_UP_S = 2, WARM_UP_S_MAX = 30 };
enum { WORDS = 2000, WORD_MAX = 9, TEXT_BYTES = 64 << 20 };

static const double BACKLOG_S = 0.02;

typedef struct {
    const char *bootstrap, *topic;
    long records;
    int size, partitions;
    double rate;
    long keys;
    int text;
    char **settings;
    int setting_count;
} Load;

typedef struct {
    double *values;
    atomic_long count;
    long capacity;
} Series;

static atomic_long acked, failed;
static Series acks; // from the intended send time of a record until its acknowledgement; only for `latency`

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void die(const char *what) {
    fprintf(stderr, "rkload: %s\n", what);
    exit(1);
}

static void series_open(Series *series, long capacity) {
    series->values = calloc(capacity, sizeof(double));
    series->capacity = capacity;
}

static void series_add(Series *series, double value) {
    long at = atomic_fetch_add(&series->count, 1);
    if (at < series->capacity)
        series->values[at] = value;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void series_print(Series *series, const char *name) {
    long n = series->count < series->capacity ? series->count : series->capacity;
    if (n == 0)
        die("no latency was measured");
    qsort(series->values, n, sizeof(double), by_value);
    printf("\"%s\":{\"p50\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f}", name, series->values[n / 2] * 1e6,
           series->values[(long)(n * .99)] * 1e6, series->values[(long)(n * .999)] * 1e6, series->values[n - 1] * 1e6);
}

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk, (void)opaque;
    if (message->err) {
        if (atomic_fetch_add(&failed, 1) == 0)
            fprintf(stderr, "rkload: delivery: %s\n", rd_kafka_err2str(message->err));
        return;
    }
    atomic_fetch_add(&acked, 1);
    if (acks.values && message->len >= sizeof(double)) {
        double due;
        memcpy(&due, message->payload, sizeof due);
        if (due > 0)
            series_add(&acks, now() - due);
    }
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char error[512];
    if (rd_kafka_conf_set(conf, name, value, error, sizeof error) != RD_KAFKA_CONF_OK)
        die(error);
}

static int is_own(const char *name) { return !strcmp(name, "rate") || !strcmp(name, "keys") || !strcmp(name, "text"); }

static rd_kafka_conf_t *configure(const Load *load, char role) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", load->bootstrap);
    for (int i = 0; i < load->setting_count; i++) {
        char *name = strdup(load->settings[i]), *value = strchr(name, '=');
        if (!value)
            die("settings are name=value");
        *value++ = 0;
        int prefixed = (name[0] == 'p' || name[0] == 'c') && name[1] == '.';
        if (!is_own(name) && (!prefixed || name[0] == role))
            set(conf, prefixed ? name + 2 : name, value);
        free(name);
    }
    return conf;
}

static rd_kafka_t *create(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
    char error[512];
    rd_kafka_t *rk = rd_kafka_new(type, conf, error, sizeof error);
    if (!rk)
        die(error);
    return rk;
}

static rd_kafka_topic_t *open_topic(rd_kafka_t *rk, const Load *load) {
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, load->topic, 0);
    const struct rd_kafka_metadata *metadata;
    if (rd_kafka_metadata(rk, 0, topic, &metadata, 10000))
        die("no metadata within 10 s");
    rd_kafka_metadata_destroy(metadata);
    return topic;
}

static rd_kafka_t *create_consumer(const Load *load, int64_t offset) {
    rd_kafka_conf_t *conf = configure(load, 'c');
    set(conf, "group.id", "rkload");
    set(conf, "enable.auto.commit", "false");
    rd_kafka_t *rk = create(RD_KAFKA_CONSUMER, conf);
    rd_kafka_poll_set_consumer(rk);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(load->partitions);
    for (int i = 0; i < load->partitions; i++)
        rd_kafka_topic_partition_list_add(list, load->topic, i)->offset = offset;
    rd_kafka_assign(rk, list);
    return rk;
}

// Random letters, so that the load cannot be compressed to nothing.
static char *payload(int size) {
    char *bytes = malloc(size < 8 ? 8 : size);
    srand(7);
    for (int i = 0; i < size; i++)
        bytes[i] = 'a' + rand() % 26;
    return bytes;
}

// Words in random order, which compress about as well as records of one topic. The start of a record advances by its size,
// so that a batch repeats words only.
static char *text(long length) {
    static char words[WORDS][WORD_MAX + 1];
    srand(7);
    for (int i = 0; i < WORDS; i++)
        for (int j = 0, n = 3 + rand() % (WORD_MAX - 2); j < n; j++)
            words[i][j] = 'a' + rand() % 26;
    char *bytes = malloc(length + WORD_MAX + 1);
    for (long at = 0; at < length;) {
        const char *word = words[rand() % WORDS];
        at += sprintf(bytes + at, "%s ", word);
    }
    return bytes;
}

static void enqueue(rd_kafka_t *rk, rd_kafka_topic_t *topic, int partition, char *bytes, int size, const char *key) {
    while (rd_kafka_produce(topic, partition, RD_KAFKA_MSG_F_COPY, bytes, size, key, key ? strlen(key) : 0, 0) == -1) {
        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
            die(rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(rk, 10);
    }
}

static void produce(const Load *load) {
    rd_kafka_conf_t *conf = configure(load, 'p');
    // The queue of the application is not measured: the sender must never wait for it.
    set(conf, "queue.buffering.max.messages", "2000000");
    set(conf, "queue.buffering.max.kbytes", "1000000");
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *rk = create(RD_KAFKA_PRODUCER, conf);
    rd_kafka_topic_t *topic = open_topic(rk, load);
    char *bytes = load->text ? text(TEXT_BYTES + load->size) : payload(load->size), key[24];
    double began = now();
    for (long i = 0; i < load->records; i++) {
        char *value = load->text ? bytes + i * load->size % TEXT_BYTES : bytes;
        snprintf(key, sizeof key, "%012ld", load->keys ? i % load->keys : 0);
        enqueue(rk, topic, i % load->partitions, value, load->size, load->keys ? key : 0);
        if (i % 1024 == 0)
            rd_kafka_poll(rk, 0);
    }
    while (rd_kafka_flush(rk, 1000))
        ;
    double wall = now() - began;
    printf("{\"records\":%ld,\"failed\":%ld,\"bytes\":%.0f,\"wall_s\":%.4f,\"client_cpu_s\":%.3f}\n", acked, failed,
           acked * (double)load->size, wall, cpu_seconds());
}

static void consume(const Load *load) {
    double began = 0, bytes = 0;
    rd_kafka_t *rk = create_consumer(load, RD_KAFKA_OFFSET_BEGINNING);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(rk);
    rd_kafka_message_t **messages = malloc(CONSUME_BATCH * sizeof *messages);
    long records = 0;
    while (records < load->records) {
        ssize_t got = rd_kafka_consume_batch_queue(queue, CONSUME_TIMEOUT_MS, messages, CONSUME_BATCH);
        if (got <= 0)
            die("no record within 20 s");
        if (began == 0)
            began = now(); // connecting takes librdkafka half a second, which is not the server's time
        for (ssize_t i = 0; i < got; i++) {
            if (!messages[i]->err) {
                records++;
                bytes += messages[i]->len;
            }
            rd_kafka_message_destroy(messages[i]);
        }
    }
    double wall = now() - began;
    printf("{\"records\":%ld,\"failed\":0,\"bytes\":%.0f,\"wall_s\":%.4f,\"client_cpu_s\":%.3f}\n", records, bytes, wall,
           cpu_seconds());
}

typedef struct {
    rd_kafka_t *consumer, *producer;
    Series arrivals;
    atomic_long warm;      // the number of warm-up records that arrived,
    atomic_long warm_last; // and the number of the last one; they contain their negative number instead of a time
    atomic_int over;
} Journey;

static void *receive(void *argument) {
    Journey *journey = argument;
    while (journey->arrivals.count < journey->arrivals.capacity) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(journey->consumer, CONSUME_TIMEOUT_MS);
        if (!message)
            die("no record within 20 s");
        double due, arrived = now();
        if (!message->err && message->len >= sizeof due) {
            memcpy(&due, message->payload, sizeof due);
            if (due <= 0) {
                atomic_fetch_add(&journey->warm, 1);
                journey->warm_last = (long)-due;
            } else
                series_add(&journey->arrivals, arrived - due);
        }
        rd_kafka_message_destroy(message);
    }
    return 0;
}

static void *serve_deliveries(void *argument) {
    Journey *journey = argument;
    while (!journey->over)
        rd_kafka_poll(journey->producer, 1);
    return 0;
}

static void sleep_until(double moment) {
    double rest = moment - now();
    if (rest > 0) {
        struct timespec t = {(time_t)rest, (long)((rest - (long)rest) * 1e9)};
        nanosleep(&t, 0);
    }
}

// Open loop: a record contains its intended send time, not the actual one, so a stalled sender does not hide delays.
// Measuring begins when the consumer has received the records of two seconds and has caught up, so that slow first seconds
// do not count; a server that does not catch up is measured after thirty seconds.
static void latency(const Load *load) {
    Journey journey = {0};
    series_open(&journey.arrivals, load->records);
    series_open(&acks, load->records);
    journey.consumer = create_consumer(load, RD_KAFKA_OFFSET_END);
    rd_kafka_conf_t *conf = configure(load, 'p');
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    journey.producer = create(RD_KAFKA_PRODUCER, conf);
    rd_kafka_topic_t *topic = open_topic(journey.producer, load);
    pthread_t receiver, server;
    pthread_create(&receiver, 0, receive, &journey);
    pthread_create(&server, 0, serve_deliveries, &journey);
    prctl(PR_SET_TIMERSLACK, 1);
    char *bytes = payload(load->size);
    double began = now();
    int steady = 0;
    long sent = 0;
    for (long measured = 0; measured < load->records; sent++) {
        double due = began + sent / load->rate;
        sleep_until(due);
        if (!measured)
            steady = journey.warm >= WARM_UP_S * load->rate && sent - journey.warm_last <= BACKLOG_S * load->rate;
        double stamp = measured || steady || due - began > WARM_UP_S_MAX ? due : -sent;
        measured += stamp > 0;
        memcpy(bytes, &stamp, sizeof stamp);
        enqueue(journey.producer, topic, sent % load->partitions, bytes, load->size, 0);
    }
    pthread_join(receiver, 0);
    rd_kafka_flush(journey.producer, 5000);
    journey.over = 1;
    pthread_join(server, 0);
    printf("{\"records\":%ld,\"failed\":%ld,\"steady\":%d,\"client_cpu_s\":%.3f,", sent, failed, steady, cpu_seconds());
    series_print(&journey.arrivals, "e2e_us");
    printf(",");
    series_print(&acks, "ack_us");
    printf("}\n");
}

// Tries every few milliseconds; the result is a time of CLOCK_MONOTONIC, which the harness uses as well.
static void first(const Load *load) {
    rd_kafka_conf_t *conf = configure(load, 'p');
    const char *impatient[][2] = {{"reconnect.backoff.ms", "10"},
                                  {"reconnect.backoff.max.ms", "20"},
                                  {"retry.backoff.ms", "10"},
                                  {"retry.backoff.max.ms", "20"},
                                  {"topic.metadata.refresh.fast.interval.ms", "20"},
                                  {"topic.metadata.propagation.max.ms", "120000"},
                                  {"message.timeout.ms", "120000"},
                                  {"log_level", "0"}};
    for (size_t i = 0; i < sizeof impatient / sizeof *impatient; i++)
        set(conf, impatient[i][0], impatient[i][1]);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *rk = create(RD_KAFKA_PRODUCER, conf);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, load->topic, 0);
    enqueue(rk, topic, 0, payload(load->size), load->size, 0);
    double deadline = now() + DEADLINE_S;
    while (!acked && !failed && now() < deadline)
        rd_kafka_poll(rk, 100);
    if (!acked)
        die("no record was acknowledged");
    printf("{\"records\":1,\"failed\":0,\"acked_at\":%.6f}\n", now());
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "version")) {
        printf("%s\n", rd_kafka_version_str());
        return 0;
    }
    if (argc < 7) {
        fprintf(stderr, "usage: rkload produce|consume|latency|first BOOTSTRAP TOPIC RECORDS SIZE PARTITIONS [name=value ...]\n");
        return 2;
    }
    Load load = {argv[2], argv[3], atol(argv[4]), atoi(argv[5]), atoi(argv[6]), 1000, 0, 0, argv + 7, argc - 7};
    for (int i = 7; i < argc; i++) {
        if (!strncmp(argv[i], "rate=", 5))
            load.rate = atof(argv[i] + 5);
        if (!strncmp(argv[i], "keys=", 5))
            load.keys = atol(argv[i] + 5);
        if (!strncmp(argv[i], "text=", 5))
            load.text = atoi(argv[i] + 5);
    }
    if (!strcmp(argv[1], "produce"))
        produce(&load);
    else if (!strcmp(argv[1], "consume"))
        consume(&load);
    else if (!strcmp(argv[1], "latency"))
        latency(&load);
    else if (!strcmp(argv[1], "first"))
        first(&load);
    else
        die("the load is produce, consume, latency or first");
    fflush(stdout);
    _exit(failed ? 1 : 0); // a graceful close is not measured and may take seconds
}
