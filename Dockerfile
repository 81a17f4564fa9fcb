# The broker alone: no compiler, no JVM. Data under /data; clients are told what advertised.listeners says.
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
HEALTHCHECK --interval=5s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9644/health/ready', timeout=2)"]
ENTRYPOINT ["millrace", "serve", "--data-dir", "/data", "--override", "listeners=PLAINTEXT://0.0.0.0:9092"]
