"""What a session is built with."""

from __future__ import annotations

import pytest

from millrace.spark_jobs.session import CONNECTOR, with_connector


@pytest.mark.parametrize(
    ("given", "jars", "wanted"),
    [
        ({}, ["k.jar"], {"spark.jars": "k.jar"}),
        ({"spark.jars": "a.jar, b.jar"}, ["k.jar"], {"spark.jars": "a.jar,b.jar,k.jar"}),
        ({"spark.jars": "k.jar"}, ["k.jar"], {"spark.jars": "k.jar"}),
        ({"spark.jars": "a.jar"}, [], {"spark.jars": "a.jar", "spark.jars.packages": CONNECTOR}),
        ({"spark.jars.packages": "g:a:1"}, [], {"spark.jars.packages": f"g:a:1,{CONNECTOR}"}),
        (
            {"spark.jars.packages": "g:a:1"},
            ["k.jar"],
            {"spark.jars.packages": "g:a:1", "spark.jars": "k.jar"},
        ),
    ],
)
def test_the_connector_comes_beside_what_is_given(
    given: dict[str, str], jars: list[str], wanted: object
) -> None:
    """Jars and packages of the settings are added to it and take nothing away."""
    assert with_connector(given, jars) == wanted
