#!/bin/bash
# Replaces `/velero` in pods: runs the program of the pod's image as a process of this machine, with
# the rights of the pod's ServiceAccount. DOCS_FOLDER has scratch files and ports of pods.
# DOCS_LONGSHORE is our program, DOCS_PLUGIN is our plugin, and DOCS_PEERS has other binaries.
set -eu
export PATH="$DOCS_PEERS:${PATH#*:}" # without the folder of stand-ins
uid=$(basename "$LONGSHORE_TERMINATION_LOG" .termination)
folder=$(dirname "$LONGSHORE_TERMINATION_LOG")
own=$DOCS_FOLDER/pods/$uid
mkdir -p "$own"
of_cluster() { sed -n "s/.*$1: \"\([^\"]*\)\".*/\1/p" "$KUBECONFIG"; }
server=$(of_cluster server) admin=$(of_cluster token)
# Cheaper than kubectl, because each pod makes several calls. Arguments: path, more flags of curl.
api() { curl --silent --insecure --fail --retry 20 --retry-connrefused -H "Authorization: Bearer $admin" "${@:2}" "$server/api/v1/$1"; }
api pods | jq ".items[] | select(.metadata.uid == \"$uid\")" >"$own/pod.json"
of() { jq -r "$1" "$own/pod.json"; }
namespace=$(of .metadata.namespace) image=$(of '.spec.containers[0].image') plugins=$(of '[.spec.initContainers[]?.image] | join(" ")')
token=$(api "namespaces/$namespace/serviceaccounts/$(of .spec.serviceAccountName)/token" -H 'Content-Type: application/json' \
  -d '{"spec": {"expirationSeconds": 10800}}' | jq -r .status.token)
sed "s/token: \"[^\"]*\"/token: \"$token\"/" "$KUBECONFIG" >"$own/kubeconfig"

# Writes Secrets to the paths of their volumes and to variables. A missing Secret has no keys.
secret() { { api "namespaces/$namespace/secrets/$1" || true; } | jq -r '.data // {} | to_entries[] | "\(.key) \(.value)"'; }
while read -r volume name; do
  while read -r key value; do base64 -d <<<"$value" >"$folder/$uid-$volume/$key"; done < <(secret "$name")
done < <(of '.spec.volumes[]? | select(.secret) | "\(.name) \(.secret.secretName)"')
while read -r variable name wanted; do
  while read -r key value; do [[ $key != "$wanted" ]] || export "$variable=$(base64 -d <<<"$value")"; done < <(secret "$name")
done < <(of '.spec.containers[0].env[]? | select(.valueFrom.secretKeyRef) | "\(.name) \(.valueFrom.secretKeyRef | .name + " " + .key)"')
credentials=$folder/$uid-cloud-credentials/cloud
[[ ! -e $credentials ]] || export AWS_SHARED_CREDENTIALS_FILE=$credentials
export KUBECONFIG=$own/kubeconfig VELERO_NAMESPACE=$namespace

# Expands $(NAME) in arguments like the kubelet. All pods share the ports of this machine, so each
# status page gets a free port.
words=()
for word; do
  while [[ $word =~ \$\(([A-Z_]+)\) ]]; do
    name=${BASH_REMATCH[1]}
    word=${word//"\$($name)"/${!name}}
  done
  if [[ $word =~ ^(--status-page-address=.*):([0-9]+)$ ]]; then
    port=$(node -e 'const s = require("net").createServer().listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close(); })')
    echo "$port" >"$own/port"
    word=${BASH_REMATCH[1]}:$port
  fi
  words+=("$word")
done

# Shorter intervals, so that tests do not wait.
soon=(--metrics-address 127.0.0.1:0 --item-operation-sync-frequency 1s --store-validation-frequency 10s --backup-sync-period 2s)
case "$image ${words[0]} ${words[1]-}" in
velero/velero*" server "*)
  mkdir -p "$own/plugins" "$own/home"
  ln "$DOCS_PEERS/velero-plugin-for-aws" "$own/plugins/" 2>/dev/null || cp "$DOCS_PEERS/velero-plugin-for-aws" "$own/plugins/"
  [[ $plugins != *velero-plugin-longshore* ]] || cp "$DOCS_PLUGIN" "$own/plugins/velero-plugin-longshore"
  export HOME=$own/home TMPDIR=$own/home VELERO_SCRATCH_DIR=$own/home
  exec "$DOCS_PEERS/velero" "${words[@]}" --plugin-dir "$own/plugins" --profiler-address "" "${soon[@]}"
  ;;
velero/velero*" node-agent server") exec sleep 86400 ;; # only has to exist: our agent moves volumes
velero/velero*) exec "$DOCS_PEERS/velero" "${words[@]}" ;;
*" server "*) exec "$DOCS_LONGSHORE" "${words[@]}" "${soon[@]}" ;;
*" node-agent server") exec "$DOCS_LONGSHORE" "${words[@]}" --metrics-address 127.0.0.1:0 ;;
*) exec "$DOCS_LONGSHORE" "${words[@]}" ;;
esac
