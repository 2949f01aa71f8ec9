#!/bin/sh
# rootfs.sh DIRECTORY [ARCHITECTURE]: builds the root file system of the image.
# The image has Node, the bundle with its native parts, their C libraries, the launcher's tools and
# an init. The Dockerfile runs this script. CI runs it too, and imports the result into containerd.
# ARCHITECTURE is amd64 or arm64, as in Debian. The default is this machine's.
# Needs:
# - `npm ci`
# - Debian's packages dash, coreutils, tini and ca-certificates
# - a C++ compiler, make and python3
# - Node's headers (libnode-dev, or the folder in npm_config_nodedir)
# - for another architecture, its compiler (g++-aarch64-linux-gnu), and the packages from the
#   configured sources of apt and npm
#
# The same sources on the same machine make the same bytes. Prints size and hash. Fails above 300
# MiB.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:?DIRECTORY}
own=$(dpkg --print-architecture)
architecture=${2:-$own}
fail() { echo "rootfs.sh: $1" >&2; exit 1; }
need() { command -v "$1" || fail "$1 is missing: apt-get install $2"; }
need make make >/dev/null
need readelf binutils >/dev/null
case $architecture in
amd64) cpu=x64 triplet=x86_64-linux-gnu loader=/lib64/ld-linux-x86-64.so.2 ;;
arm64) cpu=arm64 triplet=aarch64-linux-gnu loader=/lib/ld-linux-aarch64.so.1 ;;
*) fail "no image is made for $architecture; amd64 and arm64 are" ;;
esac
if [ "$architecture" = "$own" ]; then
  need g++ g++ >/dev/null
  need dash dash >/dev/null
  need tini tini >/dev/null
else
  need "$triplet-g++" "g++-$triplet" >/dev/null
  export CC="$triplet-gcc" CXX="$triplet-g++" AR="$triplet-ar"
fi
need python3 python3 >/dev/null
nodedir=${npm_config_nodedir:-/usr}
[ -f "$nodedir/include/node/node_api.h" ] || fail "Node's headers are missing: apt-get install libnode-dev"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$out"
umask 022
# Where the programs and libraries of Debian are.
sysroot=
if [ "$architecture" != "$own" ]; then
  sysroot=$work/sysroot
  "$root/image/sysroot.sh" "$architecture" "$sysroot"
fi
app=$out/opt/longshore
mkdir -p "$app/dist" "$app/bin" "$app/node_modules/node/bin" "$out/bin" "$out/sbin" "$out/etc" "$out/tmp" "$out/proc" "$out/sys" "$out/dev" "$out/scratch"
chmod 1777 "$out/tmp" "$out/scratch"

# npm packages that the installation for this machine lacks. Their hashes are in the tree.
fetch() { # PACKAGE@VERSION DIRECTORY
  mkdir -p "$2" && (cd "$work" && npm pack --silent --prefer-offline --pack-destination "$work" "$1" >"$work/packed" && tar -C "$2" --strip-components=1 -xzf "$(tail -1 "$work/packed")")
}

# the program
own_node=$root/node_modules/node/bin/node
version=$(sed -n 's/^ *"version": "\(.*\)",*$/\1/p' "$root/node_modules/node/package.json")
node=$own_node
# Compare each Node with its hash before it is started.
check_node() { # FILE ARCHITECTURE
  expected=$(awk -v v="$version" -v a="$2" '$1 == v && $2 == a { print $3 }' "$root/image/node.sha256")
  [ -n "$expected" ] || fail "image/node.sha256 has no hash of Node $version for $2"
  found=$(sha256sum "$1" | cut -d' ' -f1)
  [ "$found" = "$expected" ] || fail "Node $version for $2 is not the one that image/node.sha256 names: its hash is $found"
}
check_node "$own_node" "$own"
if [ "$architecture" != "$own" ]; then
  fetch "node-linux-$cpu@$version" "$work/node"
  node=$work/node/bin/node
fi
[ "$architecture" = "$own" ] || check_node "$node" "$architecture"
(cd "$root" && "$own_node" src/build.ts "$app/dist" "$work/inputs.json")
cp "$root/package.json" "$root/LICENSE" "$app/"
cp "$root/bin/longshore" "$app/bin/"
cp "$node" "$app/node_modules/node/bin/node"
: >"$app/node-is-checked"
# The installation of zstd-napi's package fetches a binary that no lockfile covers. So compile the
# package's sources here, outside of the installed packages. Node-API is stable: the headers may be
# of another Node.
mkdir -p "$work/node_modules"
for name in zstd-napi node-addon-api; do
  (cd "$root/node_modules" && tar -chf - --exclude=zstd-napi/build "$name") | tar -C "$work/node_modules" -xf -
done
# npm brings node-gyp; the package's own script would fetch the binary once more
# Paths of this build are kept out of it.
export CFLAGS="-ffile-prefix-map=$work=/build" CXXFLAGS="-ffile-prefix-map=$work=/build"
if ! (cd "$work/node_modules/zstd-napi" && npm_config_nodedir=$nodedir npm exec --offline --no -c "node-gyp rebuild --arch=$cpu") >"$work/build.log" 2>&1; then
  tail -20 "$work/build.log" >&2
  fail "zstd-napi could not be compiled"
fi
unset CFLAGS CXXFLAGS

# Native parts and their loaders, without their sources. They are not in the bundle.
copy() { # FROM NAME EXCLUDED...
  from=$1 name=$2; shift 2
  (cd "$from" && tar -chf - "$@" --exclude=doc --exclude=deps --exclude=obj.target --exclude='*.a' --exclude=vendor "$name") |
    tar -C "$app/node_modules" --no-same-owner -xf -
}
copy "$root/node_modules" koffi
copy "$root/node_modules" fastcdc-wasm
copy "$work/node_modules" zstd-napi --exclude=zstd-napi/src --exclude='*.mk' --exclude='*akefile' --exclude='*.gyp*' --exclude=.deps
# The prebuilt parts of koffi and of the BLAKE hashes for this platform are separate packages.
locked() { "$own_node" -p "require('$root/package-lock.json').packages['node_modules/$native'].$1"; }
for native in "@koromix/koffi-linux-$cpu" "@napi-rs/blake-hash-linux-$cpu-gnu"; do
  if [ "$architecture" != "$own" ]; then
    fetch "$native@$(locked version)" "$app/node_modules/$native"
    found=sha512-$("$own_node" -p "crypto.createHash('sha512').update(fs.readFileSync('$work/$(tail -1 "$work/packed")')).digest('base64')")
    [ "$found" = "$(locked integrity)" ] || fail "$native is not the one of the lockfile"
  elif [ -d "$root/node_modules/$native" ]; then
    mkdir -p "$app/node_modules/${native%/*}" && cp -r "$root/node_modules/$native" "$app/node_modules/${native%/*}/"
  fi
done

rm -rf "$app/node_modules/@koromix/"*/musl_*

# Only the launcher's tools. Use `kubectl debug` for tools to look inside.
tool() { # NAME TARGET
  for folder in /usr/bin /bin; do
    if [ -e "$sysroot$folder/$1" ]; then cp -L "$sysroot$folder/$1" "$2" && return 0; fi
  done
  fail "$1 is missing"
}
tool dash "$out/bin/sh"
tool readlink "$out/bin/readlink"
# an init that forwards signals and reaps
tool tini "$out/sbin/tini"
ln -s /opt/longshore/bin/longshore "$out/velero"
# What pods wait with whose volumes are restored file by file.
ln -s /opt/longshore/bin/longshore "$out/velero-restore-helper"
ln -s /opt/longshore/bin/longshore "$out/bin/longshore"
printf 'root:x:0:0:root:/scratch:/bin/sh\nnonroot:x:65532:65532:nonroot:/scratch:/bin/sh\n' >"$out/etc/passwd"
printf 'root:x:0:\nnonroot:x:65532:\n' >"$out/etc/group"
if [ -f /etc/ssl/certs/ca-certificates.crt ]; then
  mkdir -p "$out/etc/ssl/certs" && cp -L /etc/ssl/certs/ca-certificates.crt "$out/etc/ssl/certs/"
fi

# Libraries of the programs and native parts, and their own libraries, at the paths of the
# architecture.
library() { for folder in "/lib/$triplet" "/usr/lib/$triplet" /lib /usr/lib; do if [ -e "$sysroot$folder/$1" ]; then echo "$folder/$1" && return 0; fi; done; }
mkdir -p "$out$(dirname "$loader")"
cp -L "$sysroot$loader" "$out$loader"
{ printf '%s\n' "$node" "$out/bin/sh" "$out/bin/readlink" "$out/sbin/tini"; find "$app" -name '*.node'; } >"$work/todo"
while [ -s "$work/todo" ]; do
  xargs -d '\n' readelf -d <"$work/todo" 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u >"$work/needed"
  : >"$work/todo"
  while read -r name; do
    [ "$name" != "${loader##*/}" ] || continue
    place=$(library "$name")
    [ -n "$place" ] || fail "the library $name is missing"
    [ ! -e "$out$place" ] || continue
    mkdir -p "$out$(dirname "$place")"
    cp -L "$sysroot$place" "$out$place"
    echo "$out$place" >>"$work/todo"
  done <"$work/needed"
done

# Compiled code lets a data mover start sooner. Node keeps it by path, so compile inside the new
# root. The code fits only processors like this machine's, so an image for another architecture has
# none. V8 writes a random hash seed into the code. A fixed seed gives the same code each time, and
# a reader of the code ignores the seed.
mkdir -p "$app/cache"
if [ "$architecture" = "$own" ]; then
  chroot=$(command -v chroot || echo /usr/sbin/chroot)
  flags=$(sed -n 's/^exec .*"$node" \(.*\) "$entry" "$@"$/\1/p' "$root/bin/longshore")
  [ -n "$flags" ] || fail "bin/longshore does not say how Node is started"
  # shellcheck disable=SC2086
  inside() {
    env -i PATH=/bin LONGSHORE_PASSWORD=x "$chroot" "$out" /opt/longshore/node_modules/node/bin/node --random-seed=1 $flags "$@"
  }
  [ -e "$out/dev/null" ] || : >"$out/dev/null"
  mkdir "$out/tmp/build"
  cp "$root/image/compiled-code.cjs" "$out/tmp/build/"
  # The modules that a data mover loads first, and its threads. Names of other files contain a hash.
  set -- "$app/dist/cli.js" "$app"/dist/run-*.js "$app"/dist/move-volume-*.js "$app/dist/thread.js"
  for file; do shift; set -- "$@" "${file#"$out"}"; done
  inside /tmp/build/compiled-code.cjs /opt/longshore/cache "$@"
  inside /opt/longshore/dist/cli.js repository create --repo /tmp/build/repo >/dev/null
  # A native part that does not load is replaced by a slower stand-in, with a warning. Fail then.
  warnings=$(inside /opt/longshore/dist/cli.js snapshot create /opt/longshore/bin --repo /tmp/build/repo 2>&1 >/dev/null)
  [ -z "$warnings" ] || { echo "rootfs.sh: $warnings" >&2; exit 1; }
  rm -rf "$out/tmp/build" "$out/dev/null"
fi
chmod -R a+rX "$app"
# For scanners: every file with its package.
"$own_node" "$root/image/spdx.ts" "$out" "$work/inputs.json" $sysroot >"$work/spdx.json"
cp "$work/spdx.json" "$app/longshore.spdx.json"

# every time is the same
find "$out" -exec touch -h -d @0 {} +
hash=$(tar -C "$out" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - . | sha256sum | cut -d' ' -f1)
size=$(du -sm "$out" | cut -f1)
echo "root file system: $size MiB, sha256:$hash"
[ "$size" -le 300 ] || { echo "rootfs.sh: more than 300 MiB" >&2; exit 1; }
