#!/bin/bash
# make.sh : makes the images here with mke2fs and debugfs (e2fsprogs 1.47.0), and tree.txt: what find and sha256sum say of the files that went in. As root, since there are device nodes.
set -eu
HERE=$(cd "$(dirname "$0")" && pwd)
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT; cd "$W"
# nothing of this machine's defaults
export MKE2FS_CONFIG=/dev/null TZ=UTC

# e2fsck ends with 1 where it has changed something, and with more where something is wrong
repair() { local status=0; e2fsck -fy "$@" >/dev/null 2>&1 || status=$?; [ $status -le 1 ]; }

mkdir -p t/etc/deep t/many t/empty
printf '127.0.0.1 localhost\n' >t/etc/hosts; chmod 640 t/etc/hosts; chown 2000:70000 t/etc/hosts
: >t/etc/deep/nothing
printf 'short' >t/etc/deep/short
head -c 100 /dev/zero | tr '\0' s >t/etc/deep/hundred
head -c 300000 /dev/zero | tr '\0' x >t/etc/deep/large
ln -s ../hosts t/etc/deep/link
ln -s "$(printf 'n%.0s' $(seq 200))" t/etc/deep/far-link
ln -s "$(printf 'f%.0s' $(seq 59))" t/etc/deep/link-59
ln -s "$(printf 'f%.0s' $(seq 60))" t/etc/deep/link-60
ln t/etc/hosts t/etc/deep/same
mkfifo t/etc/pipe; mknod t/etc/null c 1 3
printf x >"t/etc/$(printf 'a\xff\xfe')"
printf y >'t/etc/<b>"ä'
# a thousand pieces with holes between them
for i in $(seq 0 999); do printf 'piece %d' "$i" | dd of=t/etc/pieces bs=8192 seek="$i" conv=notrunc status=none; done
touch -d '2200-01-02 03:04:05' t/etc/deep/large; touch -d '1969-12-31 23:59:58' t/etc/deep/short
chmod 4755 t/etc/deep/large; chmod 1777 t/empty
find t -exec touch -h -d '2026-11-26 10:00:00' {} + ; touch -d '2200-01-02 03:04:05' t/etc/deep/large; touch -d '1969-12-31 23:59:58' t/etc/deep/short

describe() { (cd "$1" && find . -mindepth 1 -printf '%P\t%y\t%m\t%U:%G\t%s\t%T@\t%l\n' | LC_ALL=C sort | while IFS= read -r line; do
  path=${line%%$'\t'*}; sum=-; [ -f "$path" ] && [ ! -L "$path" ] && sum=$(sha256sum <"$path" | cut -c1-64); printf '%s\t%s\n' "$line" "$sum"; done); }
describe t >"$HERE/tree.txt"

made() { e2fsck -fn "$1" >/dev/null 2>&1 || { echo "$1 is not clean" >&2; exit 1; }; gzip -9n <"$1" >"$HERE/$1.gz"; }
image() { local name=$1 size=$2; shift 2; truncate -s "$size" "$name"; mke2fs -q -F -U 11111111-2222-3333-4444-555555555555 -E hash_seed=11111111-2222-3333-4444-555555555555,lazy_itable_init=0,root_owner=0:0 -d t "$@" "$name" 2>log || { cat log >&2; exit 1; }; }
EXT3=has_journal,filetype,ext_attr,dir_index,sparse_super,large_file
EXT4=$EXT3,extents,flex_bg,extra_isize,huge_file,dir_nlink,uninit_bg
CSUM=$EXT3,extents,flex_bg,extra_isize,huge_file,dir_nlink,64bit,metadata_csum
image ext2-1k 24M -b 1024 -I 128 -O none,filetype,sparse_super,large_file; made ext2-1k
image ext2-old 24M -b 1024 -r 0 -O none; made ext2-old
image ext3-4k 24M -b 4096 -I 256 -O none,$EXT3 -J size=4; made ext3-4k
image ext4-4k 24M -b 4096 -I 256 -O none,$EXT4 -J size=4; made ext4-4k
image ext4-1k-inline 24M -b 1024 -I 256 -O none,$CSUM,inline_data -J size=1; made ext4-1k-inline
image ext4-meta-bg 24M -b 1024 -I 256 -g 1024 -O none,$CSUM,meta_bg,^flex_bg -J size=1; made ext4-meta-bg
image ext4-bigalloc 48M -b 1024 -C 16384 -I 256 -O none,$CSUM,bigalloc -J size=1; made ext4-bigalloc
image ext4-64k 64M -b 65536 -I 256 -O none,$CSUM,metadata_csum_seed,^has_journal; made ext4-64k

# five thousand names, a file of 1 TiB, one that was allocated and never written, extended attributes
rm -rf t; mkdir -p t/names; truncate -s 1T t/tib; printf end | dd of=t/tib bs=1M seek=1048575 conv=notrunc status=none
printf 'here' >t/half; : >t/attributes
(cd t/names && for i in $(seq 1 5000); do : >"$(printf 'a name that is rather long, number %05d' "$i")"; done)
image ext4-many 16M -b 4096 -I 256 -N 6000 -O none,$CSUM -J size=4
debugfs -w -f - ext4-many >/dev/null 2>&1 <<'DEBUGFS'
fallocate half 1 20
sif half size 60000
ea_set attributes user.colour blue
sif attributes mtime 0x10
sif attributes mtime_extra 0x1DCD6501
DEBUGFS
repair -D ext4-many
made ext4-many

# the journal has a newer state: a block of the root's directory, one that is revoked, and one that looks like the journal's own
rm -rf t; mkdir -p t/a; printf 'old' >t/a/old
for version in 1 3; do
  features=$EXT4; [ $version = 3 ] && features=$CSUM
  image journal-$version 16M -b 4096 -I 256 -O none,$features -J size=4
  cp journal-$version after; head -c 4096 /dev/zero | tr '\0' N >new; printf '\xc0\x3b\x39\x98' | cat - new | head -c 4096 >escaped
  debugfs -w -f - after >/dev/null 2>&1 <<'DEBUGFS'
write new new
write escaped escaped
rm a/old
DEBUGFS
  changed=$(cmp -l journal-$version after | awk '{print int(($1-1)/4096)}' | sort -un | paste -sd,)
  : >blocks; for b in ${changed//,/ }; do dd if=after bs=4096 skip="$b" count=1 status=none >>blocks; done
  last=${changed##*,}; head -c 4096 /dev/zero | tr '\0' W >wrong; cat wrong wrong >wrong2
  kept=$(debugfs -R 'blocks lost+found' journal-$version 2>/dev/null | awk '{print $1}')
  check=; [ $version = 3 ] && check=-c\ -v3
  debugfs -w -f - journal-$version >/dev/null 2>&1 <<DEBUGFS
jo $check
jw -b $last,$kept wrong2
jw -r $last,$kept
jw -b $changed blocks
jc
DEBUGFS
  cp journal-$version replayed; repair replayed
  debugfs -R 'ls lost+found' replayed 2>/dev/null | grep -q '\.\.'
  debugfs -R 'cat new' replayed 2>/dev/null | cmp - new
  debugfs -R 'cat escaped' replayed 2>/dev/null | cmp - escaped
  gzip -9n <journal-$version >"$HERE/journal-$version.gz"
done
ls -l "$HERE"
