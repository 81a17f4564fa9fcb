import java.io.File;
import java.io.FilterOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.util.concurrent.locks.ReentrantLock;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, keeping a copy of the folder RECORDED before each call that changes it: what a kill at that call
 * leaves. The copies are RECORDS/0000-mkdir-checkpoint, ... Calls are one after the other, so that a copy is of one moment.
 */
public class Recorder {
    private static final File RECORDED = new File(System.getenv("RECORDED"));
    private static final File RECORDS = new File(System.getenv("RECORDS"));
    private static final ReentrantLock LOCK = new ReentrantLock();
    private static int count;

    private interface Call<T> {
        T run() throws IOException;
    }

    private static <T> T record(String name, File file, Call<T> call) throws IOException {
        LOCK.lock();
        try {
            if (LOCK.getHoldCount() == 1 && file.toPath().startsWith(RECORDED.toPath())) {
                copy(new File(RECORDS, String.format("%04d-%s-%s", count++, name, file.getName())));
            }
            return call.run();
        } finally {
            LOCK.unlock();
        }
    }

    private static void copy(File record) throws IOException {
        try (Stream<java.nio.file.Path> paths = Files.walk(RECORDED.toPath())) {
            paths.forEach(path -> {
                try {
                    Files.copy(path, record.toPath().resolve(RECORDED.toPath().relativize(path)));
                } catch (IOException e) {
                    throw new UncheckedIOException(e);
                }
            });
        }
    }

    /** Of each write that reaches the file. */
    private static final class Output extends FilterOutputStream {
        private final File file;

        Output(OutputStream out, File file) {
            super(out);
            this.file = file;
        }

        @Override
        public void write(byte[] bytes, int start, int length) throws IOException {
            record("write", file, () -> {
                out.write(bytes, start, length);
                return null;
            });
        }
    }

    public static final class Raw extends RawLocalFileSystem {
        @Override
        protected OutputStream createOutputStreamWithMode(Path path, boolean append, FsPermission mode) throws IOException {
            File file = pathToFile(path);
            return new Output(record("create", file, () -> super.createOutputStreamWithMode(path, append, mode)), file);
        }

        @Override
        protected boolean mkOneDirWithMode(Path path, File file, FsPermission mode) throws IOException {
            return file.isDirectory() || record("mkdir", file, () -> super.mkOneDirWithMode(path, file, mode));
        }

        @Override
        public boolean rename(Path from, Path to) throws IOException {
            return record("rename", pathToFile(to), () -> super.rename(from, to));
        }

        @Override
        public boolean delete(Path path, boolean recursive) throws IOException {
            File file = pathToFile(path);
            return file.exists() ? record("delete", file, () -> super.delete(path, recursive)) : super.delete(path, recursive);
        }
    }

    /** What FileSystem gives for file:. */
    public static final class Local extends LocalFileSystem {
        public Local() {
            super(new Raw());
        }
    }

    /** What FileContext gives for file:. */
    public static final class Context extends ChecksumFs {
        public Context(URI address, Configuration configuration) throws IOException, URISyntaxException {
            super(new RawContext(address, configuration));
        }
    }

    private static final class RawContext extends DelegateToFileSystem {
        RawContext(URI address, Configuration configuration) throws IOException, URISyntaxException {
            super(address, new Raw(), configuration, "file", false);
        }

        @Override
        public int getUriDefaultPort() {
            return -1;
        }

        @Override
        @Deprecated
        public FsServerDefaults getServerDefaults() throws IOException {
            return LocalConfigKeys.getServerDefaults();
        }

        @Override
        public boolean isValidName(String name) {
            return true;
        }
    }
}
