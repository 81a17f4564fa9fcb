"""The keys that are accepted, kept and shown, and change nothing here: grouped by the reason, which is their
sentence. Pure.

One line a key: name, kind, default (`-` for none, `""` for the empty one) and, where Kafka has them, bounds.
Kept true: each key that a Kafka broker knows has a row here, in table.py or in refused.py, so
that a server.properties from a Kafka cluster starts without a warning about a key that Kafka knows. A key
moves to table.py with the change that obeys it.
"""

from __future__ import annotations

from millrace.broker.settings.key import KIND_NAMES, STORED, Key

_KINDS = {name: kind for kind, name in KIND_NAMES.items()}
_AUTOMQ = "AutoMQ's; accepted so that its users can move."

_GROUPS: tuple[tuple[str, str], ...] = (
    (
        "The store keeps the copies: a partition has no replicas that could lag, be elected or be copied.",
        """
        alter.log.dirs.replication.quota.window.num int 11 1..
        alter.log.dirs.replication.quota.window.size.seconds int 1 1..
        auto.leader.rebalance.enable boolean true
        follower.fetch.last.tiered.offset.enable boolean false
        leader.imbalance.check.interval.seconds long 300 1..
        min.insync.replicas int 1 1..
        num.replica.alter.log.dirs.threads int -
        num.replica.fetchers int 1 1..
        replica.fetch.backoff.ms int 1000 0..
        replica.fetch.max.bytes int 1048576 0..
        replica.fetch.min.bytes int 1
        replica.fetch.response.max.bytes int 10485760 0..
        replica.fetch.wait.max.ms int 500
        replica.high.watermark.checkpoint.interval.ms long 5000
        replica.lag.time.max.ms long 30000
        replica.selector.class string -
        replica.socket.receive.buffer.bytes int 65536
        replica.socket.timeout.ms int 30000
        replication.quota.window.num int 11 1..
        replication.quota.window.size.seconds int 1 1..
        unclean.leader.election.enable boolean false
        unclean.leader.election.interval.ms long 300000 1..
        """,
    ),
    (
        "Obeyed by controllers: a broker that has it not empty is given no partitions where nobody names a "
        "broker (KIP-1066; millrace cluster drain). Set dynamically, for the broker or for all, it counts "
        "before the broker's file. One broker that is its own controller takes all.",
        """
        cordoned.log.dirs list ""
        """,
    ),
    (
        "The store keeps the copies: any factor is taken, and a partition is shown with one replica, its "
        "leader.",
        """
        default.replication.factor int 1 1..
        offsets.topic.replication.factor short 3 1..
        """,
    ),
    (
        "One event loop does the work that these pools, queues and buffers are for.",
        """
        background.threads int 10 1..
        delete.records.purgatory.purge.interval.requests int 1
        fetch.purgatory.purge.interval.requests int 1000
        group.coordinator.append.linger.ms int -1 -1..
        group.coordinator.background.threads int 2 1..
        group.coordinator.cached.buffer.max.bytes int 1048588 524288..
        group.coordinator.threads int 4 1..
        num.io.threads int 8 1..
        num.network.threads int 3 1..
        num.recovery.threads.per.data.dir int 2 1..
        offsets.commit.timeout.ms int 5000 1..
        offsets.load.buffer.size int 5242880 1..
        offsets.topic.compression.codec int 0
        producer.purgatory.purge.interval.requests int 1000
        queued.max.requests int 500 1..
        server.max.startup.time.ms long 9223372036854775807 0..
        share.fetch.purgatory.purge.interval.requests int 1000
        """,
    ),
    (
        "The system sizes and times sockets better than a fixed number does.",
        """
        controller.socket.timeout.ms int 30000
        max.connection.creation.rate int 2147483647 0..
        socket.connection.setup.timeout.max.ms long 30000
        socket.connection.setup.timeout.ms long 10000
        socket.receive.buffer.bytes int 102400
        socket.send.buffer.bytes int 102400
        """,
    ),
    (
        "A partition is not a set of files on this node's disks.",
        """
        log.dir.failure.timeout.ms long 30000 1..
        log.flush.interval.messages long 9223372036854775807 1..
        log.flush.interval.ms long -
        log.flush.offset.checkpoint.interval.ms int 60000 0..
        log.flush.scheduler.interval.ms long 9223372036854775807
        log.flush.start.offset.checkpoint.interval.ms int 60000 0..
        log.index.size.max.bytes int 10485760 4..
        log.initial.task.delay.ms long 30000 0..
        log.preallocate boolean false
        log.segment.delete.delay.ms long 60000 0..
        """,
    ),
    (
        "This release compacts no topic; a compacted one keeps every record.",
        """
        log.cleaner.backoff.ms long 15000 0..
        log.cleaner.dedupe.buffer.size long 134217728
        log.cleaner.delete.retention.ms long 86400000 0..
        log.cleaner.enable boolean true
        log.cleaner.io.buffer.load.factor double 0.9
        log.cleaner.io.buffer.size int 524288 0..
        log.cleaner.io.max.bytes.per.second double 1.7976931348623157E308
        log.cleaner.max.compaction.lag.ms long 9223372036854775807 1..
        log.cleaner.min.cleanable.ratio double 0.5 0..1
        log.cleaner.min.compaction.lag.ms long 0 0..
        log.cleaner.threads int 1 0..
        """,
    ),
    (
        "The quorum of this release has no use for it.",
        """
        controlled.shutdown.enable boolean true
        controller.performance.always.log.threshold.ms long 2000 0..
        controller.performance.sample.period.ms long 60000 100..
        controller.quorum.append.linger.ms int 25 0..
        controller.quorum.auto.join.enable boolean false
        controller.quorum.fetch.max.bytes int 1048576 1..
        controller.quorum.fetch.snapshot.max.bytes int 1048576 1..
        controller.quorum.retry.backoff.ms int 20 0..
        early.start.listeners list -
        initial.broker.registration.timeout.ms int 60000
        inter.broker.listener.name string -
        internal.metadata.delete.delay.millis long 60000
        internal.metadata.log.segment.bytes int -
        internal.metadata.max.batch.size.in.bytes int 8388608
        max.request.partition.size.limit int 2000 1..
        metadata.log.max.snapshot.interval.ms long 3600000 0..
        metadata.log.segment.ms long 604800000
        metadata.max.idle.interval.ms int 500 0..
        metadata.max.retention.bytes long 104857600
        metadata.max.retention.ms long 604800000
        """,
    ),
    (
        "This release serves classic groups only.",
        """
        group.consumer.assignment.interval.ms int 1000 0..
        group.consumer.assignors list uniform,range
        group.consumer.heartbeat.interval.ms int 5000 1..
        group.consumer.max.assignment.interval.ms int 15000 0..
        group.consumer.max.heartbeat.interval.ms int 15000 1..
        group.consumer.max.session.timeout.ms int 60000 1..
        group.consumer.max.size int 2147483647 1..
        group.consumer.migration.policy string bidirectional
        group.consumer.min.assignment.interval.ms int 0 0..
        group.consumer.min.heartbeat.interval.ms int 5000 1..
        group.consumer.min.session.timeout.ms int 45000 1..
        group.consumer.regex.refresh.interval.ms int 600000 10000..
        group.consumer.session.timeout.ms int 45000 1..
        group.coordinator.rebalance.protocols list classic,consumer,streams
        group.share.assignment.interval.ms int 1000 0..
        group.share.assignors list simple
        group.share.delivery.count.limit int 5 2..10
        group.share.heartbeat.interval.ms int 5000 1..
        group.share.initialize.retry.interval.ms int 30000 1..
        group.share.max.assignment.interval.ms int 15000 0..
        group.share.max.delivery.count.limit int 10 5..25
        group.share.max.heartbeat.interval.ms int 15000 1..
        group.share.max.partition.max.record.locks int 4000 2000..10000
        group.share.max.record.lock.duration.ms int 60000 30000..3600000
        group.share.max.session.timeout.ms int 60000 1..
        group.share.max.share.sessions int 2000 1..
        group.share.max.size int 200 1..1000
        group.share.min.assignment.interval.ms int 0 0..
        group.share.min.delivery.count.limit int 2 2..5
        group.share.min.heartbeat.interval.ms int 5000 1..
        group.share.min.partition.max.record.locks int 100 100..2000
        group.share.min.record.lock.duration.ms int 15000 1000..30000
        group.share.min.session.timeout.ms int 45000 1..
        group.share.partition.max.record.locks int 2000 100..10000
        group.share.persister.class.name string org.apache.kafka.server.share.persister.DefaultStatePersister
        group.share.record.lock.duration.ms int 30000 1000..3600000
        group.share.session.timeout.ms int 45000 1..
        group.streams.assignment.interval.ms int 1000 0..
        group.streams.heartbeat.interval.ms int 5000 1..
        group.streams.initial.rebalance.delay.ms int 3000 0..
        group.streams.max.assignment.interval.ms int 15000 0..
        group.streams.max.heartbeat.interval.ms int 15000 1..
        group.streams.max.session.timeout.ms int 60000 1..
        group.streams.max.size int 2147483647 1..
        group.streams.max.standby.replicas int 2 0..
        group.streams.min.assignment.interval.ms int 0 0..
        group.streams.min.heartbeat.interval.ms int 5000 1..
        group.streams.min.session.timeout.ms int 45000 1..
        group.streams.num.standby.replicas int 0 0..
        group.streams.session.timeout.ms int 45000 1..
        share.coordinator.append.linger.ms int -1 -1..
        share.coordinator.cached.buffer.max.bytes int 1048588 524288..
        share.coordinator.cold.partition.snapshot.interval.ms int 300000 1..
        share.coordinator.load.buffer.size int 5242880 1..
        share.coordinator.snapshot.update.records.per.snapshot int 500 0..500
        share.coordinator.state.topic.compression.codec int 0
        share.coordinator.state.topic.min.isr short 2 1..
        share.coordinator.state.topic.num.partitions int 50 1..
        share.coordinator.state.topic.prune.interval.ms int 300000 1..
        share.coordinator.state.topic.replication.factor short 3 1..
        share.coordinator.state.topic.segment.bytes int 104857600 1..
        share.coordinator.threads int 1 1..
        share.coordinator.write.timeout.ms int 5000 1..
        """,
    ),
    (
        "This release serves no transactions.",
        """
        add.partitions.to.txn.retry.backoff.max.ms int 100 0..
        add.partitions.to.txn.retry.backoff.ms int 20 1..
        transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000 1..
        transaction.max.timeout.ms int 900000 1..
        transaction.partition.verification.enable boolean true
        transaction.remove.expired.transaction.cleanup.interval.ms int 3600000 1..
        transaction.state.log.load.buffer.size int 5242880 1..
        transaction.state.log.min.isr int 2 1..
        transaction.state.log.num.partitions int 50 1..
        transaction.state.log.replication.factor short 3 1..
        transaction.state.log.segment.bytes int 104857600 1..
        transaction.two.phase.commit.enable boolean false
        transactional.id.expiration.ms int 604800000 1..
        """,
    ),
    (
        "This release enforces no quotas.",
        """
        controller.quota.window.num int 11 1..
        controller.quota.window.size.seconds int 1 1..
        quota.window.num int 11 1..
        quota.window.size.seconds int 1 1..
        remote.log.manager.copy.quota.window.num int 11 1..
        remote.log.manager.copy.quota.window.size.seconds int 1 1..
        remote.log.manager.fetch.quota.window.num int 11 1..
        remote.log.manager.fetch.quota.window.size.seconds int 1 1..
        """,
    ),
    (
        "Metrics are served at admin.listener, in Prometheus form.",
        """
        kafka.metrics.polling.interval.secs int 10 1..
        kafka.metrics.reporters list ""
        metric.reporters list org.apache.kafka.common.metrics.JmxReporter
        metrics.num.samples int 2 1..
        metrics.recording.level string INFO
        metrics.sample.window.ms long 30000 1..
        telemetry.max.bytes int 1048576 1..
        """,
    ),
    (
        "Every record is in the object store; there is no second tier.",
        """
        log.local.retention.bytes long -2 -2..
        log.local.retention.ms long -2 -2..
        remote.fetch.max.wait.ms int 500 1..
        remote.list.offsets.request.timeout.ms long 30000 1..
        remote.log.index.file.cache.total.size.bytes long 1073741824 1..
        remote.log.index.file.cache.ttl.ms long 900000 -1..
        remote.log.manager.copier.thread.pool.size int 10 1..
        remote.log.manager.copy.max.bytes.per.second long 9223372036854775807 1..
        remote.log.manager.expiration.thread.pool.size int 10 1..
        remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807 1..
        remote.log.manager.follower.thread.pool.size int 2 1..
        remote.log.manager.task.interval.ms long 30000 1..
        remote.log.manager.task.retry.backoff.max.ms long 30000 1..
        remote.log.manager.task.retry.backoff.ms long 500 1..
        remote.log.manager.task.retry.jitter double 0.2 0..0.5
        remote.log.manager.thread.pool.size int 2 1..
        remote.log.metadata.custom.metadata.max.bytes int 128 0..
        remote.log.metadata.manager.class.name string org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
        remote.log.metadata.manager.class.path string -
        remote.log.metadata.manager.impl.prefix string rlmm.config.
        remote.log.metadata.manager.listener.name string -
        remote.log.reader.max.pending.tasks int 100 1..
        remote.log.reader.threads int 10 1..
        remote.log.storage.manager.class.name string -
        remote.log.storage.manager.class.path string -
        remote.log.storage.manager.impl.prefix string rsm.config.
        remote.log.storage.system.enable boolean false
        """,  # noqa: E501
    ),
    (
        "No listener of this release speaks TLS or SASL; a listener that should is refused.",
        """
        connection.failed.authentication.delay.ms int 100 0..
        connections.max.reauth.ms long 0
        delegation.token.expiry.check.interval.ms long 3600000 1..
        delegation.token.expiry.time.ms long 86400000 1..
        delegation.token.max.lifetime.ms long 604800000 1..
        delegation.token.secret.key password -
        sasl.client.callback.handler.class class -
        sasl.enabled.mechanisms list GSSAPI
        sasl.jaas.config password -
        sasl.kerberos.kinit.cmd string /usr/bin/kinit
        sasl.kerberos.min.time.before.relogin long 60000
        sasl.kerberos.principal.to.local.rules list DEFAULT
        sasl.kerberos.service.name string -
        sasl.kerberos.ticket.renew.jitter double 0.05
        sasl.kerberos.ticket.renew.window.factor double 0.8
        sasl.login.callback.handler.class class -
        sasl.login.class class -
        sasl.login.connect.timeout.ms int -
        sasl.login.read.timeout.ms int -
        sasl.login.refresh.buffer.seconds short 300
        sasl.login.refresh.min.period.seconds short 60
        sasl.login.refresh.window.factor double 0.8
        sasl.login.refresh.window.jitter double 0.05
        sasl.login.retry.backoff.max.ms long 10000
        sasl.login.retry.backoff.ms long 100
        sasl.mechanism.controller.protocol string GSSAPI
        sasl.mechanism.inter.broker.protocol string GSSAPI
        sasl.oauthbearer.assertion.algorithm string RS256
        sasl.oauthbearer.assertion.claim.aud string -
        sasl.oauthbearer.assertion.claim.exp.seconds int 300 0..86400
        sasl.oauthbearer.assertion.claim.iss string -
        sasl.oauthbearer.assertion.claim.jti.include boolean false
        sasl.oauthbearer.assertion.claim.nbf.seconds int 60 0..3600
        sasl.oauthbearer.assertion.claim.sub string -
        sasl.oauthbearer.assertion.file string -
        sasl.oauthbearer.assertion.private.key.file string -
        sasl.oauthbearer.assertion.private.key.passphrase password -
        sasl.oauthbearer.assertion.template.file string -
        sasl.oauthbearer.client.credentials.client.id string -
        sasl.oauthbearer.client.credentials.client.secret password -
        sasl.oauthbearer.clock.skew.seconds int 30
        sasl.oauthbearer.expected.audience list ""
        sasl.oauthbearer.expected.issuer string -
        sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000
        sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000
        sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100
        sasl.oauthbearer.jwks.endpoint.url string -
        sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
        sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
        sasl.oauthbearer.scope string -
        sasl.oauthbearer.scope.claim.name string scope
        sasl.oauthbearer.sub.claim.name string sub
        sasl.oauthbearer.token.endpoint.url string -
        sasl.server.callback.handler.class class -
        sasl.server.max.receive.size int 524288
        security.providers string -
        ssl.allow.dn.changes boolean false
        ssl.allow.san.changes boolean false
        ssl.cipher.suites list ""
        ssl.client.auth string none
        ssl.enabled.protocols list TLSv1.2,TLSv1.3
        ssl.endpoint.identification.algorithm string https
        ssl.engine.factory.class class -
        ssl.key.password password -
        ssl.keymanager.algorithm string SunX509
        ssl.keystore.certificate.chain password -
        ssl.keystore.key password -
        ssl.keystore.location string -
        ssl.keystore.password password -
        ssl.keystore.type string JKS
        ssl.principal.mapping.rules string DEFAULT
        ssl.protocol string TLSv1.3
        ssl.provider string -
        ssl.secure.random.implementation string -
        ssl.trustmanager.algorithm string PKIX
        ssl.truststore.certificates password -
        ssl.truststore.location string -
        ssl.truststore.password password -
        ssl.truststore.type string JKS
        super.users string -
        allow.everyone.if.no.acl.found boolean false
        """,  # noqa: E501
    ),
    (
        "Unstable versions are never served.",
        """
        unstable.api.versions.enable boolean false
        unstable.feature.versions.enable boolean false
        """,
    ),
    (
        "Bandwidth is counted by the clock whenever somebody asks for it: there is no period.",
        """
        s3.network.refill.period.ms int 10 1..
        """,
    ),
    (
        _AUTOMQ,
        """
        automq.backpressure.cooldown.ms long 15000
        automq.backpressure.enabled boolean true
        automq.kafka-go.metadata.compatibility.enabled boolean true
        automq.retry.storm.backoff.enabled boolean false
        automq.retry.storm.backoff.max.delay.ms long 1000
        automq.zonerouter.channels string -
        automq.zonerouter.local.write.mode string router_channel
        elasticstream.enable boolean false
        elasticstream.endpoint string s3://
        s3.controller.request.retry.base.delay.ms long 500
        s3.controller.request.retry.max.count int 2147483647
        s3.mock.enable boolean false
        s3.ops.buckets string -
        s3.stream.allocator.policy string POOLED_HEAP
        s3.telemetry.metrics.exporter.report.interval.ms int 30000
        s3.telemetry.metrics.exporter.uri string -
        s3.telemetry.metrics.level string INFO
        s3.wal.iops int 3000
        s3.wal.thread int 8
        """,
    ),
)


def _key(line: str, meaning: str) -> Key:
    name, kind, default, *bounds = line.split()
    low, _, high = bounds[0].partition("..") if bounds else ("", "", "")
    text = None if default == "-" else "" if default == '""' else default
    is_ours = name.startswith(("s3.", "automq.", "elasticstream."))
    low_bound, high_bound = float(low) if low else None, float(high) if high else None
    return Key(name, _KINDS[kind], text, meaning, STORED, low_bound, high_bound, is_ours=is_ours)


STORED_KEYS: tuple[Key, ...] = tuple(
    _key(line, meaning) for meaning, lines in _GROUPS for line in lines.strip().splitlines()
)
