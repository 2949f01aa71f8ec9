#!/bin/bash
# longshore-image.sh: builds our image localhost/longshore:1 for cluster.sh, as the Dockerfile does.
# Prints the folder with image.tar and longshore-plugin. The file image.tar is a docker archive of
# the output of image/rootfs.sh. The file longshore-plugin is made from it by image/plugin.sh.
# The image of the present sources is built once, and other callers wait for it. The folder is
# removed with node_modules, because the image contains these packages.
set -eu
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
IMAGES=$ROOT/node_modules/.cache/longshore-images
cd "$ROOT"
made=$IMAGES/$(find bin src image crds manifests package.json package-lock.json LICENSE -type f -print0 | LC_ALL=C sort -z |
  xargs -0 sha256sum | sha256sum | cut -c1-16)

make_image() { local d=$1
  "$ROOT/image/rootfs.sh" "$d/root" >"$d/rootfs.log"
  "$ROOT/image/plugin.sh" "$d/longshore-plugin" "$d/root" >"$d/plugin.log"
  tar -C "$d/root" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$d/layer.tar" .
  printf '{"architecture":"amd64","os":"linux","config":{"Entrypoint":["/velero"],"User":"65532:65532","Env":["PATH=/bin","HOME=/scratch","NODE_COMPILE_CACHE=/opt/longshore/cache","SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"history":[{}]}' \
    "$(sha256sum "$d/layer.tar" | cut -d' ' -f1)" >"$d/config.json"
  printf '[{"Config":"config.json","RepoTags":["localhost/longshore:1"],"Layers":["layer.tar"]}]' >"$d/manifest.json"
  tar -C "$d" -cf "$d/image.tar" manifest.json config.json layer.tar
  rm -rf "$d/layer.tar" "$d/root"; }

mkdir -p "$IMAGES"
exec 9>"$IMAGES/lock"
flock 9
if [ ! -d "$made" ]; then
  # Images of earlier sources: no process uses them any more.
  find "$IMAGES" -mindepth 1 -maxdepth 1 -type d -mmin +1440 -exec rm -rf {} +
  rm -rf "$made.new"; mkdir "$made.new"
  make_image "$made.new" 9>&- >&2
  mv "$made.new" "$made"
fi
echo "$made"
