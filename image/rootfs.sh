#!/bin/sh
# rootfs.sh DIRECTORY : makes the root file system of the image: Node, the bundle, its native parts, the C libraries that they
# need, a shell, and an init. The Dockerfile runs it, and so does CI, which imports the result into containerd.
# Needs `npm ci` before it, and busybox-static and tini of Debian. Prints the size; fails above 300 MiB.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:?DIRECTORY}
busybox=$(command -v busybox) || { echo "rootfs.sh: busybox is missing: apt-get install busybox-static" >&2; exit 1; }
tini=$(command -v tini-static || command -v tini) || { echo "rootfs.sh: tini is missing: apt-get install tini" >&2; exit 1; }
rm -rf "$out"
app=$out/opt/longshore
mkdir -p "$app/dist" "$app/bin" "$app/node_modules/node/bin" "$out/bin" "$out/sbin" "$out/etc" "$out/tmp" "$out/proc" "$out/sys" "$out/dev" "$out/scratch"
chmod 1777 "$out/tmp" "$out/scratch"

# the program
node=$root/node_modules/node/bin/node
"$node" "$root/src/build.ts" "$app/dist"
rm -f "$app"/dist/*.map
cp "$root/package.json" "$root/LICENSE" "$app/"
cp "$root/bin/longshore" "$app/bin/"
cp "$node" "$app/node_modules/node/bin/node"
# what is not in the bundle: native parts and their loaders, without their sources
for name in koffi zstd-napi fastcdc-wasm; do
  (cd "$root/node_modules" && tar -cf - --exclude=zstd-napi/src --exclude=doc --exclude=deps --exclude=obj.target --exclude='*.a' --exclude=vendor "$name") | tar -C "$app/node_modules" -xf -
done
# of koffi's ready-made parts the one for this platform, where they come as packages of their own
for native in "$root"/node_modules/@koromix/koffi-linux-*; do
  [ -d "$native" ] || continue
  mkdir -p "$app/node_modules/@koromix" && cp -r "$native" "$app/node_modules/@koromix/"
done

# libraries: what the dynamic loader says that the programs and the native parts use
{ ldd "$node"; find "$app" -name '*.node' -exec ldd {} \; ; } 2>/dev/null |
  sed -n 's/.* => \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/lib[^ ]*ld-linux[^ ]*\) .*/\1/p' | sort -u | while read -r library; do
    mkdir -p "$out$(dirname "$library")"
    cp -L "$library" "$out$library"
  done

# a shell for the launcher and for who looks inside; an init that forwards signals and reaps
cp "$busybox" "$out/bin/busybox"
for name in $("$busybox" --list); do [ -e "$out/bin/$name" ] || ln -s busybox "$out/bin/$name"; done
cp "$tini" "$out/sbin/tini"
ln -s /opt/longshore/bin/longshore "$out/velero"
ln -s /opt/longshore/bin/longshore "$out/bin/longshore"
printf 'root:x:0:0:root:/scratch:/bin/sh\nnonroot:x:65532:65532:nonroot:/scratch:/bin/sh\n' >"$out/etc/passwd"
printf 'root:x:0:\nnonroot:x:65532:\n' >"$out/etc/group"
if [ -d /etc/ssl/certs ]; then
  mkdir -p "$out/etc/ssl/certs" && cp -L /etc/ssl/certs/ca-certificates.crt "$out/etc/ssl/certs/" 2>/dev/null || true
fi

# what is inside, for scanners
"$node" "$root/image/spdx.ts" >"$app/longshore.spdx.json"
# compiled code, so that a data mover starts in a third less time; it is kept by path, hence from inside
mkdir -p "$app/cache"
inside() { chroot "$out" /bin/env -i PATH=/bin NODE_COMPILE_CACHE=/opt/longshore/cache LONGSHORE_PASSWORD=x /velero "$@" >/dev/null; }
mkdir -p "$out/tmp/warm"
[ -e "$out/dev/null" ] || : >"$out/dev/null"
inside repository create --repo /tmp/warm/repo
# a native part that cannot be loaded has a slower stand-in, and a warning, which must not be in an image
warnings=$(inside snapshot create /opt/longshore/bin --repo /tmp/warm/repo 2>&1)
[ -z "$warnings" ] || { echo "rootfs.sh: $warnings" >&2; exit 1; }
inside node-agent server --help
rm -rf "$out/tmp/warm" "$out/dev/null"
chmod -R a+rX "$app"

size=$(du -sm "$out" | cut -f1)
echo "root file system: $size MiB"
[ "$size" -le 300 ] || { echo "rootfs.sh: more than 300 MiB" >&2; exit 1; }
