import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's producer, consumer and command-line classes, in one JVM that takes orders: a line of JSON in, a line of JSON out.
 *
 * {"do": "produce", "topic", "settings", "records": [[partition, key, value, [[name, value]...], timestamp]...]}  base64 or null
 * {"do": "read", "topics", "settings"}                          from the beginning to the ends as they are now
 * {"do": "tool", "class", "words", "input"}                     a main method, its exit code, and what it printed: each
 *                                                               character of "output" stands for a byte
 * {"do": "open", "name", "topic", "settings"}                   a consumer that stays: of partition 0, from its first offset
 * {"do": "follow", "name", "end", "patience"}                   it reads until it stands at "end" or something is thrown
 * {"do": "close", "name"}
 */
public class Clients {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Thrown where a tool would have ended the process. Tools catch it and end again: the first code counts. */
    private static final class Ended extends RuntimeException {
        Ended() {
            super(null, null, false, false);
        }
    }

    private static Integer code;
    private static final Map<String, KafkaConsumer<byte[], byte[]>> OPEN = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer;
            try {
                answer = obey(JSON.readTree(line));
            } catch (Throwable e) {
                answer = JSON.createObjectNode().put("error", e.toString());
            }
            out.println(answer);
        }
    }

    private static ObjectNode obey(JsonNode order) throws Exception {
        return switch (order.get("do").asText()) {
            case "produce" -> produce(order);
            case "read" -> read(order);
            case "tool" -> tool(order);
            case "open" -> open(order);
            case "follow" -> follow(order);
            case "close" -> close(order);
            default -> throw new IllegalArgumentException(order.get("do").asText());
        };
    }

    private static ObjectNode produce(JsonNode order) throws Exception {
        var futures = new ArrayList<Future<RecordMetadata>>();
        try (var producer = new KafkaProducer<>(settings(order), new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode record : order.get("records")) {
                var headers = new ArrayList<Header>();
                for (JsonNode header : record.get(3)) {
                    headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
                }
                Long timestamp = record.get(4).isNull() ? null : record.get(4).asLong();
                futures.add(producer.send(new ProducerRecord<>(order.get("topic").asText(), record.get(0).asInt(), timestamp,
                    bytes(record.get(1)), bytes(record.get(2)), headers)));
            }
        }
        var answer = JSON.createObjectNode();
        var offsets = answer.putArray("offsets");
        for (var future : futures) {
            offsets.add(future.get().offset());
        }
        return answer;
    }

    private static ObjectNode read(JsonNode order) {
        var answer = JSON.createObjectNode();
        var records = answer.putArray("records");
        try (var consumer = new KafkaConsumer<>(settings(order), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            var partitions = new ArrayList<TopicPartition>();
            for (JsonNode topic : order.get("topics")) {
                consumer.partitionsFor(topic.asText()).forEach(
                    found -> partitions.add(new TopicPartition(found.topic(), found.partition())));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            var ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(partition -> consumer.position(partition) < ends.get(partition))) {
                consumer.poll(Duration.ofMillis(500)).forEach(record -> show(record, records.addArray()));
            }
        }
        return answer;
    }

    private static ObjectNode open(JsonNode order) {
        var consumer = new KafkaConsumer<>(settings(order), new ByteArrayDeserializer(), new ByteArrayDeserializer());
        var partition = new TopicPartition(order.get("topic").asText(), 0);
        consumer.assign(List.of(partition));
        consumer.seek(partition, 0);
        OPEN.put(order.get("name").asText(), consumer);
        return JSON.createObjectNode();
    }

    private static ObjectNode follow(JsonNode order) {
        var consumer = OPEN.get(order.get("name").asText());
        var partition = consumer.assignment().iterator().next();
        var answer = JSON.createObjectNode().put("thrown", "");
        var records = answer.putArray("records");
        long deadline = System.currentTimeMillis() + order.get("patience").asLong();
        try {
            for (long last = -1; last != order.get("end").asLong() - 1;) {
                if (System.currentTimeMillis() > deadline) {
                    throw new IllegalStateException("nothing comes at " + consumer.position(partition));
                }
                for (var record : consumer.poll(Duration.ofMillis(500))) {
                    last = record.offset();
                    records.addArray().add(last).add(new String(record.value(), StandardCharsets.UTF_8));
                }
            }
        } catch (KafkaException e) {
            answer.put("thrown", e.getClass().getSimpleName());
        }
        return answer;
    }

    private static ObjectNode close(JsonNode order) {
        OPEN.remove(order.get("name").asText()).close();
        return JSON.createObjectNode();
    }

    private static void show(ConsumerRecord<byte[], byte[]> record, ArrayNode shown) {
        shown.add(record.topic()).add(record.partition()).add(record.offset()).add(record.key()).add(record.value());
        ArrayNode headers = shown.addArray();
        record.headers().forEach(header -> headers.addArray().add(header.key()).add(header.value()));
        shown.add(record.timestamp());
    }

    /** Runs a main method. The tool's own exit and shutdown hooks go through Kafka's Exit, which can be told what to do. */
    private static ObjectNode tool(JsonNode order) throws Exception {
        List<String> words = new ArrayList<>();
        order.get("words").forEach(word -> words.add(word.asText()));
        var hooks = new ArrayList<Runnable>();
        var output = new ByteArrayOutputStream();
        var errors = new ByteArrayOutputStream();
        var in = System.in;
        var out = System.out;
        var err = System.err;
        code = null;
        System.setIn(new ByteArrayInputStream(order.path("input").asText("").getBytes(StandardCharsets.UTF_8)));
        System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((status, message) -> end(status));
        Exit.setHaltProcedure((status, message) -> end(status));
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        try {
            run(order.get("class").asText(), words.toArray(new String[0]));
            hooks.forEach(Runnable::run);
        } finally {
            System.setIn(in);
            System.setOut(out);
            System.setErr(err);
        }
        return JSON.createObjectNode().put("code", code)
            .put("output", output.toString(StandardCharsets.ISO_8859_1)).put("errors", errors.toString(StandardCharsets.UTF_8));
    }

    private static void end(int status) {
        code = code == null ? status : code;
        throw new Ended();
    }

    private static void run(String name, String[] words) throws ReflectiveOperationException {
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) words);
            code = code == null ? 0 : code;
        } catch (InvocationTargetException e) {
            if (!(e.getCause() instanceof Ended)) {
                e.getCause().printStackTrace();
                code = code == null ? 1 : code;
            }
        }
    }

    private static Map<String, Object> settings(JsonNode order) {
        var settings = new HashMap<String, Object>();
        order.get("settings").fields().forEachRemaining(entry -> settings.put(entry.getKey(), entry.getValue().asText()));
        return settings;
    }

    private static byte[] bytes(JsonNode text) throws IOException {
        return text.isNull() ? null : text.binaryValue();
    }
}
