#!/bin/sh
# Pictures of a report for the documents: light, dark, and as wide as a phone. Needs Chromium.
#
#     for seed in 1 12 123; do briee train lock --horizon 6 --seed $seed --run-dir runs/lock-s$seed; done
#     briee report runs --output report.html
#     benchmarks/screenshots.sh report.html docs/images
set -eu
page=$(realpath "$1") folder=$2
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
shoot() {  # name, window, further flags
  chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-background-networking \
    --disable-component-update --user-data-dir="$profile" --virtual-time-budget=30000 \
    --window-size="$2" --screenshot="$folder/$1" "$3" "file://${4:-$page}" 2>/dev/null
}
shoot report.png 1200,3300 --blink-settings=preferredColorScheme=1
shoot report-dark.png 1200,2200 --blink-settings=preferredColorScheme=0
# A window cannot be as narrow as a phone, a frame can.
echo "<body style='margin:0'><iframe src='file://$page' width=390 height=2400 style='border:0'></iframe>" > "$profile/phone.html"
shoot report-phone.png 500,2400 --blink-settings=preferredColorScheme=1 "$profile/phone.html"
