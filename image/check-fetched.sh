#!/bin/sh
# check-fetched.sh : checks files that install scripts of npm packages fetched, and deletes wrong
# files. No lockfile vouches for such files. npm runs the script after an installation in a checkout
# (`prepare`), and so does CI. No fetched file is started.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
packages=$root/node_modules
refuse() { # FILE WHY
  rm -f "$1"
  echo "check-fetched.sh: $2; deleted $1" >&2
  exit 1
}

node=$packages/node/bin/node
[ -f "$node" ] || { echo "check-fetched.sh: there is no $node; run: npm rebuild node" >&2; exit 1; }
version=$(sed -n 's/^ *"version": "\(.*\)",*$/\1/p' "$packages/node/package.json")
case $(uname -sm) in
'Linux x86_64') architecture=amd64 ;;
'Linux aarch64') architecture=arm64 ;;
*) architecture=other ;;
esac
if [ "$architecture" = other ]; then
  echo "check-fetched.sh: WARNING: image/node.sha256 has no hash of Node $version for $(uname -sm): it is not compared" >&2
else
  found=$(sha256sum "$node" | cut -d' ' -f1)
  grep -qx "$version $architecture $found" "$root/image/node.sha256" ||
    refuse "$node" "Node $version for $architecture is not the one that image/node.sha256 names: its hash is $found"
fi

# A binary of zstd-napi that was compiled here has its Makefile beside it. A fetched binary has
# none, and its hash is unknown.
build=$packages/zstd-napi/build
if [ -d "$packages/zstd-napi" ] && [ ! -f "$build/Makefile" ] && [ "$architecture" != other ]; then
  rm -rf "$build"
  echo 'check-fetched.sh: compiling zstd-napi from the sources of its package, in place of a fetched binary' >&2
  if ! (cd "$root" && npm_config_build_from_source=zstd-napi npm rebuild zstd-napi >&2) || [ ! -f "$build/Makefile" ]; then
    # The package is optional: without it, Node's own zstd compresses.
    rm -rf "$build"
    echo 'check-fetched.sh: WARNING: zstd-napi could not be compiled: it needs python3, make and g++. Node compresses in its place, more slowly' >&2
  fi
fi
# All other native parts come with packages that the lockfile names by hash.
