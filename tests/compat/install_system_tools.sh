#!/bin/sh
# Installs what the tests run beside the broker from the system's packages, where this user may: kcat, a JDK and Maven.
# What stays missing is named once, and the tests that need it fail with a sentence.
set -eu
missing=""
command -v kcat >/dev/null 2>&1 || missing="$missing kcat"
command -v javac >/dev/null 2>&1 || missing="$missing openjdk-17-jdk-headless"
command -v mvn >/dev/null 2>&1 || missing="$missing maven"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing$missing ..."
  apt-get -qq update >/dev/null
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null
else
  echo "missing:$missing: install them with your package manager (Debian: apt-get install$missing)" >&2
fi
