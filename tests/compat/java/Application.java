import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * An application as a process: java Application.java ADDRESSES TOPIC PARTITIONS MEMBERS.
 * What it does and prints is said in tests/compat/rolled/application.py.
 */
public class Application {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration POLL = Duration.ofSeconds(2);
    private static final long PAUSE_MS = 50;
    private static volatile boolean isSent = false;
    private static volatile boolean isOver = false;

    public static void main(String[] words) throws Exception {
        var threads = new ArrayList<Thread>();
        for (int member = 0; member < Integer.parseInt(words[3]); member++) {
            threads.add(new Thread(() -> consume(words[0], words[1])));
        }
        threads.add(new Thread(() -> produce(words[0], words[1], Integer.parseInt(words[2]))));
        threads.forEach(Thread::start);
        int read = System.in.read();
        while (read >= 0 && read != '\n') {
            read = System.in.read();
        }
        isSent = true;
        while (read >= 0) {
            read = System.in.read();
        }
        isOver = true;
        for (var thread : threads) {
            thread.join();
        }
    }

    private static HashMap<String, Object> settings(String addresses) {
        return new HashMap<>(Map.of("bootstrap.servers", addresses));
    }

    private static void produce(String addresses, String topic, int partitions) {
        try (var producer = new KafkaProducer<>(settings(addresses), new StringSerializer(), new StringSerializer())) {
            for (long value = 0; !isSent; pause()) {
                for (int partition = 0; partition < partitions; partition++, value++) {
                    send(producer, topic, partition, value);
                }
            }
            producer.flush();
        }
        tell("sent");
    }

    private static void send(KafkaProducer<String, String> producer, String topic, int partition, long value) {
        double sent = now();
        try {
            producer.send(new ProducerRecord<>(topic, partition, null, Long.toString(value)), (told, error) -> {
                if (error != null) {
                    tellError("send", error);
                } else {
                    tell("acked", partition, told.offset(), value, sent, now());
                }
            });
        } catch (RuntimeException e) {
            tellError("send", e);
        }
    }

    private static void consume(String addresses, String topic) {
        var settings = settings(addresses);
        settings.put("group.id", topic);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (!isOver) {
                step(consumer, topic);
            }
        }
    }

    private static void step(KafkaConsumer<String, String> consumer, String topic) {
        var shown = new ArrayList<List<Long>>();
        var ends = new HashMap<TopicPartition, OffsetAndMetadata>();
        var told = new HashMap<Integer, Long>();
        try {
            for (var record : consumer.poll(POLL)) {
                shown.add(List.of((long) record.partition(), record.offset(), Long.parseLong(record.value())));
                ends.put(new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                told.put(record.partition(), record.offset() + 1);
            }
        } catch (RuntimeException e) {
            tellError("poll", e);
            return;
        }
        if (shown.isEmpty()) {
            return;
        }
        tell("read", now(), shown);
        try {
            consumer.commitSync(ends);
            tell("committed", now(), told);
        } catch (RuntimeException e) {
            tellError("commit", e);
        }
    }

    private static void pause() {
        try {
            Thread.sleep(PAUSE_MS);
        } catch (InterruptedException e) {
            isSent = true;
        }
    }

    private static double now() {
        return System.nanoTime() / 1e9;
    }

    private static void tellError(String where, Exception error) {
        tell("error", now(), where, error.getClass().getSimpleName(), String.valueOf(error.getMessage()));
    }

    private static synchronized void tell(Object... event) {
        try {
            System.out.println(JSON.writeValueAsString(event));
            System.out.flush();
        } catch (java.io.IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }
}
