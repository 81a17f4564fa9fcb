// With the jars of kafka-clients in the class path: millrace test --topic orders:3 -- java -cp 'libs/*' Orders.java
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Produces a record and reads it back through a fresh group; the exit code says whether it came. */
public class Orders {
    public static void main(String[] words) throws Exception {
        String address = System.getenv("KAFKA_BOOTSTRAP_SERVERS");
        Map<String, Object> producing = Map.of("bootstrap.servers", address);
        try (var producer = new KafkaProducer<>(producing, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>("orders", "a", "1")).get();
        }
        Map<String, Object> consuming =
            Map.of("bootstrap.servers", address, "group.id", "billing", "auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(consuming, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("orders"));
            ConsumerRecords<String, String> found = ConsumerRecords.empty();
            for (int tries = 0; found.isEmpty() && tries < 60; tries++) {
                found = consumer.poll(Duration.ofMillis(500));
            }
            String value = found.iterator().next().value();
            System.out.println("read " + value);
            System.exit(value.equals("1") ? 0 : 1);
        }
    }
}
