#!/bin/sh
# plugin.sh DIRECTORY ROOTFS [ARCHITECTURE]: builds the plugin for Velero's own image from the root
# file system of rootfs.sh.
# The plugin is a launcher without libraries, and the folder `longshore` with Node, its C libraries
# and the program. All of it is in DIRECTORY/plugins. The rest makes DIRECTORY the root file system
# of an init container that copies the plugin.
# Needs the same as rootfs.sh. The same sources on the same machine make the same bytes.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:?DIRECTORY}
rootfs=${2:?ROOTFS}
own=$(dpkg --print-architecture)
architecture=${3:-$own}
fail() { echo "plugin.sh: $1" >&2; exit 1; }
case $architecture in
amd64) triplet=x86_64-linux-gnu loader=/lib64/ld-linux-x86-64.so.2 plain=-fcf-protection=none ;;
arm64) triplet=aarch64-linux-gnu loader=/lib/ld-linux-aarch64.so.1 plain=-mno-outline-atomics ;;
*) fail "no plugin is made for $architecture; amd64 and arm64 are" ;;
esac
cc=${CC:-$([ "$architecture" = "$own" ] && echo gcc || echo "$triplet-gcc")}
command -v "$cc" >/dev/null || fail "$cc is missing: apt-get install gcc"
app=$rootfs/opt/longshore
file=$app/dist/velero-plugin-longshore
[ -f "$file" ] || fail "$rootfs is not what rootfs.sh makes"
umask 022
rm -rf "$out"
folder=$out/plugins/longshore
mkdir -p "$folder" "$out/etc" "$out/proc" "$out/tmp"
chmod 1777 "$out/tmp"
# Node's flags have a single source: the line that starts the same program in a shell.
flags=$(sed -n 's/^.* exec node \(.*\) "$0" "$@"$/\1/p' "$file")
[ -n "$flags" ] || fail "$file does not say how Node is started"
list=
# Node's own address is low, where programs usually are. The launcher gets a higher address, which
# processes of any kernel can use.
address=0x1000000000
for flag in $flags; do list="$list\"$flag\","; done
"$cc" -Os -std=gnu11 -Wall -Wextra -Werror -ffreestanding -fno-stack-protector -fno-tree-loop-distribute-patterns -fpie \
  -fno-asynchronous-unwind-tables "$plain" -nostdlib -static -no-pie -Wl,--build-id=none -Wl,-z,noexecstack \
  -Wl,-Ttext-segment=$address \
  -DNODE_FLAGS="$list" -o "$out/plugins/velero-plugin-longshore" "$root/image/plugin/launcher.c" -s
# An import of Node's own modules, without the line for the shell.
sed 1,2d "$file" >"$folder/plugin.mjs"
cp "$app/node_modules/node/bin/node" "$folder/node"
cp "$rootfs$loader" "$folder/ld.so"
# Libraries of Node, and their own libraries.
echo "$folder/node" >"$out/todo"
while [ -s "$out/todo" ]; do
  needed=$(xargs readelf -d <"$out/todo" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u)
  : >"$out/todo"
  for name in $needed; do
    [ "$name" != "${loader##*/}" ] && [ ! -e "$folder/$name" ] || continue
    place=
    for each in "/lib/$triplet" "/usr/lib/$triplet"; do [ ! -e "$rootfs$each/$name" ] || place=$rootfs$each/$name; done
    [ -n "$place" ] || fail "$rootfs has no $name"
    cp "$place" "$folder/$name"
    echo "$folder/$name" >>"$out/todo"
  done
done
rm "$out/todo"
cp "$root/LICENSE" "$out/LICENSE"
printf 'nonroot:x:65532:65532:nonroot:/:/nologin\n' >"$out/etc/passwd"
# The document for scanners goes with the files.
document=$("$root/node_modules/node/bin/node" "$root/image/plugin-spdx.ts" "$out" "$rootfs")
printf '%s\n' "$document" >"$folder/velero-plugin-longshore.spdx.json"
# Velero starts every executable file.
find "$folder" -type f -exec chmod 444 {} +
chmod 555 "$out/plugins/velero-plugin-longshore"
find "$out" -exec touch -h -d @0 {} +
hash=$(tar -C "$out" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - . | sha256sum | cut -d' ' -f1)
echo "plugin: $(du -sm "$out" | cut -f1) MiB, sha256:$hash"
