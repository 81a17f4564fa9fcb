# The broker alone: no compiler, no JVM. Data under /data; clients are told what advertised.listeners says. A container's
# environment wins over ENV, and --override behind the image's name over both; a --config file over neither.
FROM python:3.11-slim
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir --require-hashes --no-deps -r requirements/run.txt \
    && pip install --no-cache-dir --no-deps . \
    && useradd --system --create-home millrace \
    && mkdir /data && chown millrace /data && rm -rf /src/*
USER millrace
VOLUME /data
EXPOSE 9092 9644
ENV KAFKA_LISTENERS=PLAINTEXT://0.0.0.0:9092
HEALTHCHECK --interval=5s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9644/health/ready', timeout=2)"]
ENTRYPOINT ["millrace", "serve", "--data-dir", "/data"]
