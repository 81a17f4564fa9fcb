import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Asks the brokers given on standard input for a transactional producer, and prints what it is told, a line each: class and message. */
public class Transactions {
    public static void main(String[] words) throws Exception {
        var servers = new String(System.in.readAllBytes()).strip();
        Map<String, Object> config = Map.of(
            "bootstrap.servers", servers, "client.id", "ledger", "transactional.id", "t", "max.block.ms", 20000);
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            System.out.println("a transactional producer");
        } catch (Exception error) {
            for (Throwable each = error; each != null; each = each.getCause()) {
                System.out.println(each.getClass().getSimpleName() + ": " + each.getMessage());
            }
        }
    }
}
