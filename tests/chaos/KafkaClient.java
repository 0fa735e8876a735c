import java.io.BufferedWriter;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStreamWriter;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Semaphore;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Apache Kafka's own producer and consumer as clients of the workload, until SIGTERM.
 *
 * <pre>java -cp 'JARS/*' KafkaClient ROLE NAME BOOTSTRAP TOPIC PARTITIONS RATE GROUP PROTOCOL</pre>
 *
 * <p>A writer is an idempotent producer with acks=all. A group has two members, of the classic or of the consumer protocol
 * (KIP-848), which commit what they read, and leave and join again every few seconds. The output has the format of
 * tests/chaos/client.py: System.nanoTime is the monotonic clock of Linux, as Python's time.monotonic_ns.
 */
public class KafkaClient {
    static final int MEMBERS = 2;
    static final int IN_FLIGHT_MAX = 2000;
    static final long MEMBERSHIP_NANOS = 12_000_000_000L;
    static final Duration FLUSH = Duration.ofSeconds(120);
    static final Duration COMMIT = Duration.ofSeconds(20);
    static final Writer OUT =
            new BufferedWriter(
                    new OutputStreamWriter(new FileOutputStream(FileDescriptor.out), StandardCharsets.UTF_8));
    static volatile boolean isStopped;

    public static void main(String[] arguments) throws Exception {
        sun.misc.Signal.handle(new sun.misc.Signal("TERM"), signal -> isStopped = true);
        String role = arguments[0], name = arguments[1], bootstrap = arguments[2], topic = arguments[3];
        if (role.equals("writer")) {
            write(name, bootstrap, topic, Integer.parseInt(arguments[4]), Double.parseDouble(arguments[5]));
        } else {
            readAsGroup(memberSettings(bootstrap, arguments[6], arguments[7]), topic);
        }
        emit("[\"end\",%d]", System.nanoTime());
        flush();
        System.exit(0); // threads of the library may go on for a while
    }

    // --- the writer ---

    static void write(String name, String bootstrap, String topic, int partitions, double rate) throws Exception {
        Properties settings = quickSettings(bootstrap);
        settings.put("enable.idempotence", "true");
        settings.put("acks", "all");
        settings.put("linger.ms", "2");
        settings.put("request.timeout.ms", "4000");
        settings.put("delivery.timeout.ms", "300000");
        settings.put("retry.backoff.max.ms", "500");
        Semaphore slots = new Semaphore(IN_FLIGHT_MAX);
        KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        long began = System.nanoTime(), number = 0;
        while (!isStopped) {
            double due = (System.nanoTime() - began) / 1e9 * rate;
            if (number >= due || !slots.tryAcquire()) {
                // What could not be sent in time is left out: an outage is not followed by a flood.
                began += (long) (Math.max(0.0, (due - number) / rate - 1.0) * 1e9);
                flush();
                Thread.sleep(5);
                continue;
            }
            int partition = (int) (number % partitions);
            String value = name + "-" + number++;
            emit("[\"send\",%d,%d,%s]", System.nanoTime(), partition, quoted(value));
            producer.send(
                    new ProducerRecord<>(topic, partition, null, value),
                    (metadata, error) -> {
                        slots.release();
                        if (error == null) {
                            long offset = metadata.hasOffset() ? metadata.offset() : -1;
                            emit("[\"ack\",%d,%d,%s,%d]", System.nanoTime(), partition, quoted(value), offset);
                        } else {
                            emit("[\"refused\",%d,%s,%s]", System.nanoTime(), quoted(value), quoted(error.toString()));
                            if (!(error instanceof TimeoutException)) {
                                // If the cluster loses nothing, it never rejects an idempotent producer: the run reports it.
                                emitError(error);
                            }
                        }
                    });
        }
        producer.close(FLUSH);
        int left = IN_FLIGHT_MAX - slots.availablePermits();
        if (left > 0) {
            emitError(left + " records were neither acknowledged nor rejected");
        }
    }

    // --- the members of a group ---

    static Properties memberSettings(String bootstrap, String group, String protocol) {
        Properties settings = quickSettings(bootstrap);
        settings.put("group.id", group);
        settings.put("group.protocol", protocol);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("fetch.max.wait.ms", "100");
        settings.put("request.timeout.ms", "5000");
        settings.put("default.api.timeout.ms", "30000");
        if (protocol.equals("classic")) {
            settings.put("session.timeout.ms", "4000");
            settings.put("heartbeat.interval.ms", "500");
        }
        return settings;
    }

    static void readAsGroup(Properties settings, String topic) throws InterruptedException {
        List<Thread> members = new ArrayList<>();
        for (int number = 0; number < MEMBERS; number++) {
            Thread member =
                    new Thread(
                            () -> {
                                while (!isStopped) {
                                    read(settings, topic);
                                }
                            });
            member.setUncaughtExceptionHandler(
                    (thread, error) -> {
                        error.printStackTrace();
                        System.exit(1);
                    });
            member.start();
            members.add(member);
        }
        for (Thread member : members) {
            member.join();
        }
    }

    /** One membership: join, read and commit for a while, leave. */
    static void read(Properties settings, String topic) {
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic), new CommittedOffsets(consumer));
            long joined = System.nanoTime();
            while (!isStopped && System.nanoTime() - joined < MEMBERSHIP_NANOS) {
                Map<Integer, Long> ends = tellPoll(consumer.poll(Duration.ofMillis(200)));
                if (!ends.isEmpty()) {
                    commit(consumer, topic, ends);
                }
                flush();
            }
        } catch (KafkaException | IllegalStateException error) {
            // The member begins anew. Also a consumer whose own threads do not start in time: the machine may be busy.
            // IllegalStateException: the consumer's background thread resets a position while poll() uses it ("Cannot
            // set a new position without a valid current position"), a race inside Kafka's client 4.3.
            emitError(error);
        }
        flush();
    }

    /** Print what came; returns where each partition is to be read on. */
    static Map<Integer, Long> tellPoll(ConsumerRecords<String, String> records) {
        Map<Integer, Long> ends = new HashMap<>();
        long now = System.nanoTime();
        for (TopicPartition partition : records.partitions()) {
            StringBuilder received = new StringBuilder();
            for (ConsumerRecord<String, String> record : records.records(partition)) {
                received.append(received.isEmpty() ? "" : ",");
                received.append('[').append(record.offset()).append(',').append(quoted(record.value())).append(']');
                ends.put(partition.partition(), record.offset() + 1);
            }
            emit("[\"poll\",%d,%d,[%s]]", now, partition.partition(), received);
        }
        return ends;
    }

    static void commit(KafkaConsumer<String, String> consumer, String topic, Map<Integer, Long> ends) {
        long began = System.nanoTime();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        ends.forEach((partition, offset) -> {
            emit("[\"commit\",%d,%d,%d]", began, partition, offset);
            offsets.put(new TopicPartition(topic, partition), new OffsetAndMetadata(offset));
        });
        try {
            consumer.commitSync(offsets, COMMIT);
        } catch (KafkaException error) {
            emitError(error);
            return;
        }
        long ended = System.nanoTime();
        ends.keySet().forEach(partition -> emit("[\"committed\",%d,%d,%d]", ended, began, partition));
    }

    /** Prints the committed offsets of partitions when they are assigned. */
    record CommittedOffsets(KafkaConsumer<String, String> consumer) implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            if (partitions.isEmpty()) {
                return;
            }
            long began = System.nanoTime();
            try {
                consumer.committed(new HashSet<>(partitions), Duration.ofSeconds(5)).forEach((partition, found) ->
                        emit(
                                "[\"found\",%d,%d,%d,%d]",
                                began, System.nanoTime(), partition.partition(), found == null ? -1 : found.offset()));
            } catch (KafkaException error) {
                emitError(error);
            }
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}
    }

    // --- what both need ---

    /** An isolated host sends no response: by default a client waits half a minute before it tries another. */
    static Properties quickSettings(String bootstrap) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("socket.connection.setup.timeout.ms", "2000");
        settings.put("socket.connection.setup.timeout.max.ms", "2000");
        settings.put("reconnect.backoff.max.ms", "500");
        settings.put("metadata.max.age.ms", "2000");
        return settings;
    }

    static void emitError(Object error) {
        emit("[\"error\",%d,%s]", System.nanoTime(), quoted(error.toString()));
    }

    /** The threads of the library print, too: whole lines. */
    static synchronized void emit(String format, Object... values) {
        try {
            OUT.write(String.format(format, values) + "\n");
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static synchronized void flush() {
        try {
            OUT.flush();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"").replaceAll("\\p{Cntrl}", " ") + '"';
    }
}
