#!/bin/bash
# What `/velero` is in a pod here: the program of the pod's image, as a process of this machine, with the rights of the pod's ServiceAccount.
# Variables: DOCS_FOLDER (scratch; ports of pods), DOCS_LONGSHORE (our program), DOCS_PEERS (binaries of others), DOCS_PLUGIN (our plugin).
set -eu
export PATH="$DOCS_PEERS:${PATH#*:}" # without the folder of stand-ins
uid=$(basename "$LONGSHORE_TERMINATION_LOG" .termination)
folder=$(dirname "$LONGSHORE_TERMINATION_LOG")
own=$DOCS_FOLDER/pods/$uid
mkdir -p "$own"
of_cluster() { sed -n "s/.*$1: \"\([^\"]*\)\".*/\1/p" "$KUBECONFIG"; }
server=$(of_cluster server) admin=$(of_cluster token)
# Cheaper than kubectl, which is started for each pod several times. Arguments: path, what curl takes besides.
api() { curl --silent --insecure --fail --retry 20 --retry-connrefused -H "Authorization: Bearer $admin" "${@:2}" "$server/api/v1/$1"; }
api pods | jq ".items[] | select(.metadata.uid == \"$uid\")" >"$own/pod.json"
of() { jq -r "$1" "$own/pod.json"; }
namespace=$(of .metadata.namespace) image=$(of '.spec.containers[0].image') plugins=$(of '[.spec.initContainers[]?.image] | join(" ")')
token=$(api "namespaces/$namespace/serviceaccounts/$(of .spec.serviceAccountName)/token" -H 'Content-Type: application/json' \
  -d '{"spec": {"expirationSeconds": 10800}}' | jq -r .status.token)
sed "s/token: \"[^\"]*\"/token: \"$token\"/" "$KUBECONFIG" >"$own/kubeconfig"

# Secrets, where the paths of their volumes lead to, and in variables. One that is not there has nothing.
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

# As the kubelet does with $(NAME) in arguments; ports of pods are those of this machine, so that each is another one.
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

# Nobody waits for what is looked at now and then.
soon=(--metrics-address 127.0.0.1:0 --item-operation-sync-frequency 1s --store-validation-frequency 10s --backup-sync-period 2s)
case "$image ${words[0]} ${words[1]-}" in
velero/velero*" server "*)
  mkdir -p "$own/plugins" "$own/home"
  ln "$DOCS_PEERS/velero-plugin-for-aws" "$own/plugins/" 2>/dev/null || cp "$DOCS_PEERS/velero-plugin-for-aws" "$own/plugins/"
  [[ $plugins != *velero-plugin-longshore* ]] || cp "$DOCS_PLUGIN" "$own/plugins/velero-plugin-longshore"
  export HOME=$own/home TMPDIR=$own/home VELERO_SCRATCH_DIR=$own/home
  exec "$DOCS_PEERS/velero" "${words[@]}" --plugin-dir "$own/plugins" --profiler-address "" "${soon[@]}"
  ;;
velero/velero*" node-agent server") exec sleep 86400 ;; # it is there; volumes are moved by ours
velero/velero*) exec "$DOCS_PEERS/velero" "${words[@]}" ;;
*" server "*) exec "$DOCS_LONGSHORE" "${words[@]}" "${soon[@]}" ;;
*" node-agent server") exec "$DOCS_LONGSHORE" "${words[@]}" --metrics-address 127.0.0.1:0 ;;
*) exec "$DOCS_LONGSHORE" "${words[@]}" ;;
esac
