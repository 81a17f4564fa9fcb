import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.Readable;

/**
 * Kafka's own serializers as an oracle. Reads lines `CLASS VERSION HEX`, answers each with one line of four parts, by tabs:
 * `ok`, the bytes written from what was read, the bytes written from its JSON, the JSON. Or `unsupported`, or `error` and why.
 */
public class Codec {
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] arguments) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8), 1 << 16);
        var out = new PrintWriter(new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8), 1 << 16));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(line.split(" ", -1)));
        }
        out.flush();
    }

    private static String answer(String[] words) {
        try {
            Class<?> kind = Class.forName(words[0]);
            short version = Short.parseShort(words[1]);
            if (version < number(kind, "LOWEST_SUPPORTED_VERSION") || version > number(kind, "HIGHEST_SUPPORTED_VERSION")) {
                return "unsupported";
            }
            var buffer = ByteBuffer.wrap(HEX.parseHex(words[2]));
            var message = (Message) kind.getConstructor(Readable.class, short.class)
                .newInstance(new ByteBufferAccessor(buffer), version);
            if (buffer.hasRemaining()) {
                return "error\t" + buffer.remaining() + " bytes are left over";
            }
            Class<?> converter = Class.forName(words[0] + "JsonConverter");
            Method write = converter.getMethod("write", kind, short.class, boolean.class);
            Method read = converter.getMethod("read", JsonNode.class, short.class);
            var json = (JsonNode) write.invoke(null, message, version, false);
            String again;
            try {
                again = bytes((Message) read.invoke(null, json, version), version);
            } catch (InvocationTargetException e) {
                again = "-" + e.getCause();
            }
            return "ok\t" + bytes(message, version) + "\t" + again + "\t" + json;
        } catch (ClassNotFoundException e) {
            return "unsupported";
        } catch (InvocationTargetException e) {
            return "error\t" + e.getCause();
        } catch (ReflectiveOperationException | RuntimeException e) {
            return "error\t" + e;
        }
    }

    private static short number(Class<?> kind, String name) throws ReflectiveOperationException {
        return kind.getField(name).getShort(null);
    }

    private static String bytes(Message message, short version) {
        var cache = new ObjectSerializationCache();
        var buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        return HEX.formatHex(buffer.array(), 0, buffer.position());
    }
}
