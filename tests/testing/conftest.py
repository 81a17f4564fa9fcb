"""The plugin's own fixtures: in the checkout no entry point is installed."""

from millrace.testing.plugin import kafka as kafka
from millrace.testing.plugin import kafka_broker as kafka_broker
from millrace.testing.plugin import kafka_session as kafka_session
from millrace.testing.plugin import kafka_settings as kafka_settings
