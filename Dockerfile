# The broker alone: no compiler, no JVM. Data under /data; clients are told what advertised.listeners says. A container's
# environment wins over ENV, and --override behind the image's name over both; a --config file over neither.
# The compiler of the first stage is for protocol/_record_walk.c alone, and may be missing.
FROM python:3.11-slim AS build
WORKDIR /src
RUN (apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev) || echo "no C compiler"
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
COPY requirements/run.txt /requirements.txt
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --require-hashes --no-deps -r /requirements.txt \
    && pip install --no-cache-dir --no-deps /wheels/*.whl \
    && useradd --system --create-home millrace \
    && mkdir /data && chown millrace /data && rm -rf /wheels /requirements.txt
USER millrace
VOLUME /data
EXPOSE 9092 9644
ENV KAFKA_LISTENERS=PLAINTEXT://0.0.0.0:9092
HEALTHCHECK --interval=5s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9644/health/ready', timeout=2)"]
ENTRYPOINT ["millrace", "serve", "--data-dir", "/data"]
