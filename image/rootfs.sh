#!/bin/sh
# rootfs.sh DIRECTORY : makes the root file system of the image: Node, the bundle, its native parts, the C libraries that they
# need, what the launcher calls, and an init. The Dockerfile runs it, and so does CI, which imports the result into containerd.
# Needs `npm ci` before it; of Debian: dash, coreutils, tini, ca-certificates; a C++ compiler, make and python3; Node's headers
# (libnode-dev, or a folder that npm_config_nodedir names). Prints the size; fails above 300 MiB.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:?DIRECTORY}
fail() { echo "rootfs.sh: $1" >&2; exit 1; }
need() { command -v "$1" || fail "$1 is missing: apt-get install $2"; }
shell=$(need dash dash)
tini=$(need tini tini)
need make make >/dev/null
need g++ g++ >/dev/null
need python3 python3 >/dev/null
nodedir=${npm_config_nodedir:-/usr}
[ -f "$nodedir/include/node/node_api.h" ] || fail "Node's headers are missing: apt-get install libnode-dev"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$out"
app=$out/opt/longshore
mkdir -p "$app/dist" "$app/bin" "$app/node_modules/node/bin" "$out/bin" "$out/sbin" "$out/etc" "$out/tmp" "$out/proc" "$out/sys" "$out/dev" "$out/scratch"
chmod 1777 "$out/tmp" "$out/scratch"

# the program
node=$root/node_modules/node/bin/node
"$node" "$root/src/build.ts" "$app/dist" "$work/inputs.json"
rm -f "$app"/dist/*.map
cp "$root/package.json" "$root/LICENSE" "$app/"
cp "$root/bin/longshore" "$app/bin/"
cp "$node" "$app/node_modules/node/bin/node"
# zstd-napi's package fetches a binary from elsewhere when it is installed, which no lockfile vouches for. Its sources are in the
# package: they are compiled here, away from what was installed. Node-API is stable, so the headers need not be of the same Node.
mkdir -p "$work/node_modules"
for name in zstd-napi node-addon-api; do
  (cd "$root/node_modules" && tar -chf - --exclude=zstd-napi/build "$name") | tar -C "$work/node_modules" -xf -
done
# npm brings node-gyp; the package's own script would fetch the binary once more
if ! (cd "$work/node_modules/zstd-napi" && npm_config_nodedir=$nodedir npm exec --offline --no -c 'node-gyp rebuild') >"$work/build.log" 2>&1; then
  tail -20 "$work/build.log" >&2
  fail "zstd-napi could not be compiled"
fi

# what is not in the bundle: native parts and their loaders, without their sources
copy() { # FROM NAME EXCLUDED...
  from=$1 name=$2; shift 2
  (cd "$from" && tar -chf - "$@" --exclude=doc --exclude=deps --exclude=obj.target --exclude='*.a' --exclude=vendor "$name") |
    tar -C "$app/node_modules" --no-same-owner -xf -
}
copy "$root/node_modules" koffi
copy "$root/node_modules" fastcdc-wasm
copy "$work/node_modules" zstd-napi --exclude=zstd-napi/src --exclude='*.mk' --exclude='*akefile' --exclude='*.gyp*' --exclude=.deps
# of koffi's ready-made parts the one for this platform, where they come as packages of their own
for native in "$root"/node_modules/@koromix/koffi-linux-*; do
  [ -d "$native" ] || continue
  mkdir -p "$app/node_modules/@koromix" && cp -r "$native" "$app/node_modules/@koromix/"
done

# what the launcher calls, and nothing else: tools to look inside come with `kubectl debug`
cp -L "$shell" "$out/bin/sh"
for name in readlink dirname; do cp -L "$(command -v "$name")" "$out/bin/$name"; done
# an init that forwards signals and reaps
cp -L "$tini" "$out/sbin/tini"
ln -s /opt/longshore/bin/longshore "$out/velero"
ln -s /opt/longshore/bin/longshore "$out/bin/longshore"
printf 'root:x:0:0:root:/scratch:/bin/sh\nnonroot:x:65532:65532:nonroot:/scratch:/bin/sh\n' >"$out/etc/passwd"
printf 'root:x:0:\nnonroot:x:65532:\n' >"$out/etc/group"
if [ -f /etc/ssl/certs/ca-certificates.crt ]; then
  mkdir -p "$out/etc/ssl/certs" && cp -L /etc/ssl/certs/ca-certificates.crt "$out/etc/ssl/certs/"
fi

# libraries: what the dynamic loader says that the programs and the native parts use
{ ldd "$node" "$out"/bin/sh "$out"/bin/readlink "$out"/bin/dirname "$out"/sbin/tini; find "$app" -name '*.node' -exec ldd {} \; ; } 2>/dev/null |
  sed -n 's/.* => \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/lib[^ ]*ld-linux[^ ]*\) .*/\1/p' | sort -u | while read -r library; do
    mkdir -p "$out$(dirname "$library")"
    cp -L "$library" "$out$library"
  done

# compiled code, so that a data mover starts in a third less time; it is kept by path, hence from inside
mkdir -p "$app/cache"
chroot=$(command -v chroot || echo /usr/sbin/chroot)
inside() { env -i PATH=/bin NODE_COMPILE_CACHE=/opt/longshore/cache LONGSHORE_PASSWORD=x "$chroot" "$out" /velero "$@" >/dev/null; }
mkdir -p "$out/tmp/warm"
[ -e "$out/dev/null" ] || : >"$out/dev/null"
inside repository create --repo /tmp/warm/repo
# a native part that cannot be loaded has a slower stand-in, and a warning, which must not be in an image
warnings=$(inside snapshot create /opt/longshore/bin --repo /tmp/warm/repo 2>&1)
[ -z "$warnings" ] || { echo "rootfs.sh: $warnings" >&2; exit 1; }
inside node-agent server --help
rm -rf "$out/tmp/warm" "$out/dev/null"
chmod -R a+rX "$app"
# what is inside, for scanners: every file, and the package that it is of
"$node" "$root/image/spdx.ts" "$out" "$work/inputs.json" >"$work/spdx.json"
cp "$work/spdx.json" "$app/longshore.spdx.json"

size=$(du -sm "$out" | cut -f1)
echo "root file system: $size MiB"
[ "$size" -le 300 ] || { echo "rootfs.sh: more than 300 MiB" >&2; exit 1; }
