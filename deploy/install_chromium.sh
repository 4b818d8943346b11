#!/bin/sh
# Chromium for the dashboard's tests, where it can be had: on Debian and its kin, as root. Never fails: without it those
# tests are skipped, and say so.
set -u

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" > /dev/null && exit 0
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "there is no Chromium; the dashboard's tests in a browser are skipped" >&2
    exit 0
fi
echo "installing Chromium for the dashboard's tests (apt-get)" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update > /dev/null
apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core > /dev/null ||
    echo "Chromium could not be installed; the dashboard's tests in a browser are skipped" >&2
