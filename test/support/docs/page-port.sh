#!/bin/bash
# Waits for the status page of a pod with these labels, and prints its port on this machine.
# Arguments: namespace, labels.
set -eu
for _ in $(seq 1500); do
  for uid in $("$DOCS_PEERS/kubectl" -n "$1" get pods -l "$2" --field-selector status.phase=Running -o json |
    jq -r '.items[] | select(.metadata.deletionTimestamp == null) | .metadata.uid'); do
    port=$(cat "$DOCS_FOLDER/pods/$uid/port" 2>/dev/null) || continue
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "$port"
      exit
    fi
  done
  sleep 0.2
done
echo "no pod of $2 serves a page" >&2
exit 1
