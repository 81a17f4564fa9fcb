# The broker alone: no compiler, no JVM. Data under /data; clients are told what advertised.listeners says. A container's
# environment wins over ENV, and --override behind the image's name over both; a --config file over neither.
# The compiler of the first stage is for protocol/_record_walk.c alone, and may be missing.
FROM python:3.11-slim AS build
WORKDIR /src
RUN (apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev) || echo "no C compiler"
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

# What changes seldom comes first. The user has a number, which volumes keep, and by which orchestrators see that it is not root.
FROM python:3.11-slim
RUN groupadd --system --gid 999 millrace && useradd --system --uid 999 --gid 999 --create-home millrace \
    && install -d -o millrace -g millrace -m 700 /data
COPY requirements/run.txt /requirements.txt
RUN pip install --no-cache-dir --require-hashes --no-deps -r /requirements.txt && rm /requirements.txt
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-deps /wheels/*.whl && rm -rf /wheels
USER 999:999
VOLUME /data
EXPOSE 9092 9644
# Reached where the container publishes them. Whoever reaches the admin listener reads health and metrics: publish it to operators alone.
ENV KAFKA_LISTENERS=PLAINTEXT://0.0.0.0:9092 KAFKA_ADMIN_LISTENER=0.0.0.0:9644
# A new log is written once from end to end, and a log that was left is read, before a broker is ready.
HEALTHCHECK --interval=5s --start-period=120s CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['KAFKA_ADMIN_LISTENER'].rpartition(':')[2] + '/health/ready', timeout=2)"]
ENTRYPOINT ["millrace", "serve", "--data-dir", "/data"]
